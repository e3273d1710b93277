"""The daemon's URL as scripts and client files have it."""


def first_url(text: str) -> str:
    """The URL without a trailing slash: the first one of a list, which earlier releases took."""
    return next(iter(text.replace(",", " ").split()), text).rstrip("/")
