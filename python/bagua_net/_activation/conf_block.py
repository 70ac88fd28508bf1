# SPDX-License-Identifier: MIT
"""A marked block in an nccl.conf file, inserted and removed without changing any other byte.

NCCL sets each ``NAME=value`` line with ``setenv(…, overwrite=0)``: the first line for a name wins, and the environment
wins over all. So the block goes to the top. Nothing is appended to other content, so a missing newline at its end does
not matter. The markers contain no ``=``: NCCL up to 2.25 has no comments and would read them as settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .._errors import ConfFileDamaged, ConflictingSetting, NotWritable
from .._settings import conf, homes

_BEGIN = b"# >>> bagua-net >>>"
_NOTE = b' written by "bagua-net enable", removed by "bagua-net disable"'
_CREATED = b", which then removes the file, too"
_END = b"# <<< bagua-net <<<"

_BLOCK = re.compile(
    rb"^" + re.escape(_BEGIN) + rb"(?P<note>[^\r\n]*)\r?\n.*?^" + re.escape(_END) + rb"[ \t]*(?:\r?\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_BEGIN_LINE = re.compile(rb"^" + re.escape(_BEGIN), re.MULTILINE)
_NEW_FILE_MODE = 0o644


def _block(settings: Mapping[str, str], *, created: bool) -> bytes:
    lines = [_BEGIN + _NOTE + (_CREATED if created else b"")]
    lines += [os.fsencode(f"{name}={value}") for name, value in settings.items()]
    return b"\n".join([*lines, _END, b""])


def has_block(content: bytes | None) -> bool:
    """Does a file with this content have the block? None: there is no file."""
    return content is not None and _BLOCK.search(content) is not None


def _split(content: bytes) -> tuple[bytes, bool]:
    """The content outside the block, and whether we created the file.

    Raises:
        ConfFileDamaged: a block has no end.
    """
    created = any(_CREATED in match["note"] for match in _BLOCK.finditer(content))
    rest = _BLOCK.sub(b"", content)
    broken = _BEGIN_LINE.search(rest)
    if broken:
        line = rest.count(b"\n", 0, broken.start()) + 1
        raise ConfFileDamaged(
            f'line {line} begins a block of bagua-net\'s, and no "{_END.decode()}" ends it; remove the block by hand'
        )
    return rest, created


def with_block(content: bytes | None, settings: Mapping[str, str]) -> bytes:
    """The file with the block at its top; it replaces an earlier block. None: there is no file yet.

    Raises:
        ConfFileDamaged: a block has no end.
    """
    rest, created = _split(content) if content is not None else (b"", True)
    return _block(settings, created=created) + rest


def without_block(content: bytes | None) -> bytes | None:
    """The file without the block; None: remove the file, which is empty then and was created by us.

    Raises:
        ConfFileDamaged: a block has no end.
    """
    if content is None:
        return None
    rest, created = _split(content)
    return None if created and not rest else rest


def check_conflict(path: Path, content: bytes | None, settings: Mapping[str, str]) -> None:
    """Refuses to override another setting in the same file.

    Raises:
        ConflictingSetting: a line outside the block gives one of these variables another value.
    """
    others = conf.parse(_split(content)[0]) if content else {}
    for name, value in settings.items():
        if others.get(name, value) != value:
            raise ConflictingSetting(
                f"{path} has {name}={others[name]}; remove that line, or put ours above it with --force"
            )


def check_absent(path: Path, content: bytes | None, name: str) -> None:
    """Refuses a variable whatever its value: a later line counts where the block does not set it.

    Raises:
        ConflictingSetting: a line outside the block sets it.
    """
    others = conf.parse(_split(content)[0]) if content else {}
    if name in others:
        raise ConflictingSetting(f"{path} has {name}={others[name]}, for every communicator; remove that line")


def read(path: Path) -> bytes | None:
    """The file's bytes; None where it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def check_regular(path: Path) -> None:
    """Refuses to put a file into the place of a device or a directory.

    Raises:
        NotWritable: one of those is there.
    """
    if homes.is_irregular(path):
        raise NotWritable(f"{path} is no regular file; name another one")


def write(path: Path, content: bytes | None) -> None:
    """Replaces the file atomically, or removes it (None). Its mode, its owner and its extended attributes stay, and a
    symbolic link stays one.

    Raises:
        NotWritable: something is there that is no regular file.
        OSError: the system's error; the file is unchanged.
    """
    check_regular(path)
    target = path.resolve()
    if content is None:
        target.unlink(missing_ok=True)
        return
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from None
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if os.path.exists(target):
                old, new = target.stat(), os.fstat(file.fileno())
                if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                    # another user's file in a directory of one's own, or one that a container has no number for
                    with contextlib.suppress(OSError):
                        os.fchown(file.fileno(), old.st_uid, old.st_gid)
                shutil.copystat(target, temporary)
                os.utime(temporary)
            else:
                os.fchmod(file.fileno(), _NEW_FILE_MODE)
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
