"""One resize: pending groups, state recovery, quorum, and the worker's lifecycle."""
