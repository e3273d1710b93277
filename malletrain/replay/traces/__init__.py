"""Readers of job logs and node events."""
