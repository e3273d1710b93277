"""`malletrain check`: whether a training script gives the same result when workers come, go and are killed."""
