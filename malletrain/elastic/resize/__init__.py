"""Resizes and faults: how a worker gets from one world to the next, and how its part ends."""
