"""The elastic runtime that a training script uses."""
