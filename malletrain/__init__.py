"""MalleTrain: train PyTorch jobs on a supercomputer's transiently idle nodes."""

__version__ = "0.2.0"


def pip_install(extra: str) -> str:
    """The command that installs an extra: from the release's file, since nobody owns the package's name on PyPI."""
    return f"pip install './malletrain-{__version__}-py3-none-any.whl[{extra}]'"
