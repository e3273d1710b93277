"""Gradients: reduced while backward runs; batch-norm over the whole batch; noise scale; learning rates."""
