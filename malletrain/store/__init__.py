"""The journal and its projections in SQLite."""
