"""Folds of the journal, one quantity a file."""
