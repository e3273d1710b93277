"""The report of a replay: its page, its tables, its words."""
