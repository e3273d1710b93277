"""Two daemons, one active: how the journal is replicated, who may write it, and when the other takes over."""
