"""The training state: what it holds, how it moves to newcomers and to disk."""
