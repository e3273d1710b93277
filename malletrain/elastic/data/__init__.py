"""Data: which samples a step takes, who takes which, and how they are loaded."""
