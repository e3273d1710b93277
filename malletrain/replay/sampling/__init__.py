"""A long log replayed in part: which days are drawn, and what the whole log is estimated to give."""
