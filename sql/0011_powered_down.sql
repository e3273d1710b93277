-- Nodes that Slurm has switched off, or that a cloud has not yet made; until now they counted as down.
ALTER TABLE pool ADD COLUMN powered_down INTEGER NOT NULL DEFAULT 0;
