"""The image of the ledger: made beside the daemon now and then, so that a start reads only the newest events."""
