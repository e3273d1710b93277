"""Adapters for frameworks with a training loop of their own: accelerate, Hugging Face Trainer and Lightning.

Each module imports its framework (the extra `adapters`), and is imported by scripts only. They use
`Session` through its public methods, and share `steps`.
"""
