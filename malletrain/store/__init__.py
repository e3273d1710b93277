"""STATE: the journal in SQLite, its projections, and what people read of it."""
