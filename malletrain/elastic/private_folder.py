"""Folders that this user alone can write to, opened so that no other one can be put in their place.

A path can be made to lead elsewhere between a check and the use of it. So a folder is opened once, without following
a link, what is open is checked, and files are named relative to it. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from malletrain.elastic.errors import ElasticError

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class PrivateFolder:
    """An open folder of this user's. Close it, or use it in a `with` statement.

    Args:
        descriptor: of the folder.
        path: for messages.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path

    @staticmethod
    def at(path: Path, *, create: bool = False) -> PrivateFolder:
        """Open a folder. Links on the way to it are followed, and it must not be one itself.

        Args:
            create: make it, and folders on the way, for this user alone, if it is missing.

        Raises:
            FileNotFoundError: it is missing.
            ElasticError: it is a link, no folder, another user's, or others can write to it.
            OSError: it cannot be made.
        """
        if create:
            for missing in [each for each in reversed(path.parents) if not each.exists()]:
                missing.mkdir(mode=0o700, exist_ok=True)
        return _opened(path, None, create=create)

    def folder(self, name: str, *, create: bool = False) -> PrivateFolder:
        """Open a folder in this one; as `at`."""
        return _opened(self.path / name, self.descriptor, create=create)

    def names(self) -> list[str]:
        """What is in it."""
        return os.listdir(self.descriptor)  # noqa: PTH208 - a descriptor

    def opener(self, name: str, flags: int) -> int:
        """Open a file in this folder, as the `opener` of `open`: without following a link, a new one for this user
        alone, an old one only if it is a regular file of this user's that others cannot write to.

        Raises:
            ElasticError: it is not such a file.
            OSError: it cannot be opened.
        """
        path = self.path / name
        try:
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            if Path(f"/proc/self/fd/{self.descriptor}/{name}").is_symlink():
                raise ElasticError(f"{path} is a symbolic link, which is not followed: remove it") from error
            raise
        _check(descriptor, path, stat.S_ISREG, "regular file")
        return descriptor

    def rename(self, name: str, to: str) -> None:
        """Give something in this folder another name, in place of what has it."""
        os.rename(name, to, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or a folder with the files in it, if it is there. Links are removed, not followed."""
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=self.descriptor)
            except IsADirectoryError:
                with self.folder(name) as inner:
                    for each in inner.names():
                        inner.remove(each)
                os.rmdir(name, dir_fd=self.descriptor)

    def close(self) -> None:
        """Close the folder."""
        os.close(self.descriptor)

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_private_file(path: Path) -> None:
    """Raise `ElasticError` unless this is a regular file of this user's that no other user can write to, or a link to
    one; OSError if it cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    _check(descriptor, path, stat.S_ISREG, "regular file")
    os.close(descriptor)


@contextlib.contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise


def _opened(path: Path, within: int | None, *, create: bool) -> PrivateFolder:
    name = path if within is None else path.name
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=within)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    except NotADirectoryError as error:
        if path.is_symlink():
            raise ElasticError(
                f"{path} is a symbolic link, which is not followed: name the folder that it leads to"
            ) from error
        raise ElasticError(f"{path} is not a folder") from error
    _check(descriptor, path, stat.S_ISDIR, "folder")
    return PrivateFolder(descriptor, path)


def _check(descriptor: int, path: Path, is_kind: Callable[[int], bool], kind: str) -> None:
    """Close the descriptor and raise unless it is what this user alone can write to."""
    with _closed_on_error(descriptor):
        found = os.fstat(descriptor)
        if not is_kind(found.st_mode):
            raise ElasticError(f"{path} is not a {kind}")
        if found.st_uid != os.geteuid():
            raise ElasticError(f"{path} belongs to another user (uid {found.st_uid}): choose a {kind} of your own")
        if found.st_mode & _WRITABLE_BY_OTHERS:
            raise ElasticError(
                f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):04o}): make sure that its "
                f"content is yours, then: chmod go-w {path}"
            )
