"""malletraind: composition root, timers, metrics."""
