-- A start folds the newest events, and of older ones what still counts: no image of what was folded is kept.
DROP TABLE ledger_image;
