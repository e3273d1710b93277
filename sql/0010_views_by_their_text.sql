-- The text of each view is in SQLite's own sqlite_master: no copy is kept beside it.
DROP TABLE IF EXISTS schema_views;
