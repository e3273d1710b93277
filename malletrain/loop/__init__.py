"""The running state, shared by the live daemon and by replay; reaches the world through ports only."""
