"""Writing what a running daemon or command may read at the same moment."""

import os
from pathlib import Path


def publish(path: Path, text: str, mode: int | None = None) -> None:
    """Replaces the file at `path` in one step: a reader gets the former text or the new one, never a part.

    The file keeps its mode and owner; one that is new gets `mode`, by default 0644, whatever the umask is. Another
    `mode` given is set. Raises OSError as open(2) and rename(2) do.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        former = path.stat()
    except FileNotFoundError:
        former = None
    wanted = mode if mode is not None else former.st_mode & 0o7777 if former else 0o644
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            if former is not None:
                os.fchown(descriptor, former.st_uid, former.st_gid)
            os.fchmod(descriptor, wanted)  # after the owner, whose change clears bits of it
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
