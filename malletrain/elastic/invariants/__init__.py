"""What must hold of any training, whatever its script means: exact, cheap and always on."""
