"""MalleTrain: train PyTorch jobs on a supercomputer's transiently idle nodes."""

__version__ = "0.1.0"
