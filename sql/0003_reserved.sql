-- Nodes that a reservation or maintenance holds; until now they counted as down.
ALTER TABLE pool ADD COLUMN reserved INTEGER NOT NULL DEFAULT 0;
