"""What a harvest was worth: the figures of a replay and of a journal, and what they are held against."""
