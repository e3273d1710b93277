"""Sizing policies; each is a plug-in that imports no other."""
