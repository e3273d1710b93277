"""Guards: what a script does that would train wrongly without a word is an error that names the line and the cure."""
