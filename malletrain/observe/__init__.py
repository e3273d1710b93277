"""The imagined pilots of `malletraind --observe`."""
