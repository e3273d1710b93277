"""Replays side by side: which parts can be made apart, and in which processes."""
