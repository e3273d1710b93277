"""What would my idle nodes have trained? The daemon's own loop over a recorded trace."""
