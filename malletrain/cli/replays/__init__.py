"""What `malletrain replay` needs besides its options."""
