# SPDX-License-Identifier: MIT
"""A copy of the library outside the Python environment, for configuration files to point at.

Such a file outlives the environment that wrote it, and with NCCL_NET set, a missing plugin fails every NCCL job of that
user. A list beside the copy names the files that point at it; the copy is removed with the last of them.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .._errors import BaguaNetError, LibraryUnusable
from .._native.plugin import LIBRARY_NAME, check_path
from .._settings import homes
from . import conf_block, loading

#: For /etc/nccl.conf: other users cannot read root's home.
SYSTEM_DIRECTORY = Path("/usr/local/lib/bagua-net")
_USERS = "used-by"
_KEPT = f".{LIBRARY_NAME}.before"
_MODE = 0o755


def no_home() -> BaguaNetError:
    """What to tell a user without a home."""
    return BaguaNetError(
        "this user has no home directory, neither $HOME nor the password database's; "
        "set XDG_DATA_HOME to a directory for the library's copy, and use --conf FILE"
    )


def user_directory(home: Path | None = None) -> Path:
    """``bagua-net`` in $XDG_DATA_HOME, or in ~/.local/share where that is unset or not absolute (as its
    specification says).

    Args:
        home: this one; None: $HOME, or else the password database's.

    Raises:
        BaguaNetError: it is unset and this user has no home.
    """
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if data.is_absolute():
        return data / "bagua-net"
    home = home or next(iter(homes.homes()), None)
    if home is None:
        raise no_home()
    return home / ".local" / "share" / "bagua-net"


def library(directory: Path) -> Path:
    """The copy's path in the directory.

    Raises:
        PluginPathInvalid: NCCL would not take it.
    """
    path = directory.absolute() / LIBRARY_NAME
    check_path(path, remedy="set XDG_DATA_HOME to a shorter directory")
    return path


def _users(directory: Path, handled: Iterable[Path] = ()) -> list[Path]:
    """The configuration files on the list that still hold the block, and those that this user may not read, or whose
    directory this host lacks: another host that shares the home may have it. Not where this command has handled them.
    """
    here = {path.absolute() for path in handled}
    try:
        lines = (directory / _USERS).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    paths = [Path(os.fsdecode(line)) for line in lines if line]
    return [path for path in paths if _may_name_it(path, is_here=path in here)]


def _may_name_it(path: Path, *, is_here: bool) -> bool:
    try:
        return not (is_here or path.parent.is_dir()) or conf_block.has_block(conf_block.read(path))
    except OSError:
        return True


def _write_users(directory: Path, users: list[Path]) -> None:
    unique = dict.fromkeys(os.fsencode(path.absolute()) for path in users)
    conf_block.write(directory / _USERS, b"".join(raw + b"\n" for raw in unique))


def _make(directory: Path) -> None:
    """With its parents; all users enter those of the system's directory, whatever root's umask is."""
    missing = [one for one in (directory, *directory.parents) if not os.path.isdir(one)]
    directory.mkdir(parents=True, exist_ok=True)
    if directory == SYSTEM_DIRECTORY:
        for one in missing:
            one.chmod(_MODE)


def refresh(source: Path, directory: Path, users: list[Path]) -> Path:
    """Copies the library atomically, where it is another one, and records the files that point at it. Processes that
    use an older copy keep it: those of other hosts by its second name, without which NFS would take it from them.

    Returns:
        the copy's path.

    Raises:
        PluginPathInvalid: NCCL would not take it.
        LibraryUnusable: it does not load from there, or hosts with another processor use the directory.
        OSError: the system's error.
    """
    path = library(directory)
    before, now = loading.machine_of(path), loading.machine_of(source)
    if before not in (None, now):
        raise LibraryUnusable(
            f"{path} is for hosts with {before} and would be replaced by one for {now}; "
            "start the jobs of this host with `bagua-net run -- COMMAND`"
        )
    _make(directory)
    descriptor, name = tempfile.mkstemp(prefix=f".{LIBRARY_NAME}.", dir=directory)
    os.close(descriptor)
    temporary = Path(name)
    try:
        shutil.copyfile(source, temporary)
        temporary.chmod(_MODE)
        loaded = loading.load(temporary)
        if loaded.problem:
            raise LibraryUnusable(f"{path} would not load: {loaded.problem}; {loaded.remedy}")
        if not _is_same(temporary, path):
            _keep(path, temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _write_users(directory, [*_users(directory), *users])
    return path


def _is_same(one: Path, other: Path) -> bool:
    return (
        os.path.isfile(other) and one.stat().st_mode == other.stat().st_mode and filecmp.cmp(one, other, shallow=False)
    )


def _keep(path: Path, newer: Path) -> None:
    """Until the next one is kept, and where the file system can. Another host may have done so meanwhile: then the name
    is that of what is to be kept."""
    kept = path.with_name(_KEPT)
    if _is_same(newer, path):
        return
    with contextlib.suppress(OSError):
        kept.unlink(missing_ok=True)
        kept.hardlink_to(path)


def release(directory: Path, handled: Iterable[Path]) -> bool:
    """Removes the copy and its directory, unless a configuration file still points at it. True: removed.

    Args:
        handled: files that this host has, or would have.
    """
    if not os.path.lexists(directory / LIBRARY_NAME) or _users(directory, handled):
        return False
    for name in (LIBRARY_NAME, _KEPT, _USERS):
        (directory / name).unlink(missing_ok=True)
    if not any(directory.iterdir()):
        directory.rmdir()
    return True
