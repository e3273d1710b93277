"""Sizing policies; each is a plug-in that knows no other."""
