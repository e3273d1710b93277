"""Folders that this user alone can write to, opened so that no other one can be put in their place.

A path can be made to lead elsewhere between a check and the use of it. So a folder is opened once, without following
a link, what is open is checked, and files are named relative to it. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from malletrain.elastic.errors import ElasticError


class PrivateFolder:
    """An open folder of this user's, closed as a `with` statement ends.

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
        return os.listdir(self.descriptor)  # noqa: PTH208 - a descriptor

    def opener(self, name: str, flags: int) -> int:
        """Open a file in this folder, as the `opener` of `open`: without following a link, a new one for this user
        alone, an old one only if it is a regular file of this user's that others cannot write to. Raises
        `ElasticError`: it is not such a file; `OSError`: it cannot be opened."""
        path = self.path / name
        try:
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            if Path(f"/proc/self/fd/{self.descriptor}/{name}").is_symlink():
                raise ElasticError(f"{path} is a symbolic link, which is not followed: remove it") from error
            raise
        return _checked(descriptor, path, "regular file")

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

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def check_private_file(path: Path) -> None:
    """Raise `ElasticError` unless this is a regular file of this user's that no other user can write to, or a link to
    one; OSError if it cannot be opened."""
    os.close(_checked(os.open(path, os.O_RDONLY | os.O_NONBLOCK), path, "regular file"))


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
    return PrivateFolder(_checked(descriptor, path, "folder"), path)


def _checked(descriptor: int, path: Path, kind: str) -> int:
    """The descriptor; closed, and an error, unless it is what this user alone can write to."""
    wrong = _fault_of(os.fstat(descriptor), path, kind)
    if wrong:
        os.close(descriptor)
        raise ElasticError(wrong)
    return descriptor


def _fault_of(found: os.stat_result, path: Path, kind: str) -> str:
    if not (stat.S_ISDIR if kind == "folder" else stat.S_ISREG)(found.st_mode):
        return f"{path} is not a {kind}"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user (uid {found.st_uid}): choose a {kind} of your own"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return (
            f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):04o}): make sure that its content "
            f"is yours, then: chmod go-w {path}"
        )
    return ""
