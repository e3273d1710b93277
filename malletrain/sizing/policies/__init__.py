"""Sizing policies that are always there; none imports another."""
