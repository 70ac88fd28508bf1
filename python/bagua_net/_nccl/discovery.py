# SPDX-License-Identifier: MIT
"""Which NCCL a job of this environment will use, its version, and the form of NCCL_NET_PLUGIN that it takes.

RCCL is AMD's NCCL: the same functions and variables, and versions of the same numbers. Where it differs, ``product``
tells it.

Sources of the version rules: NCCL's and RCCL's ``src/net.cc``, ``src/plugin/net.cc`` and ``src/misc/param.cc``, read at
each release tag.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .._errors import BaguaNetError

#: From this release on NCCL_NET_PLUGIN may be a path; earlier ones take only the NAME of "libnccl-net-NAME.so".
FIRST_WITH_PATH = (2, 21, 0)
#: From this release on NCCL reads the file named by NCCL_CONF_FILE instead of ~/.nccl.conf.
FIRST_WITH_CONF_FILE = (2, 23, 0)
FIRST_RCCL_WITH_CONF_FILE = (2, 28, 3)
#: From this release on ~ is $HOME; earlier ones take the home of the password database. And a carriage return at the
#: end of a file's line is no part of the value any more.
FIRST_WITH_HOME_VARIABLE = (2, 30, 0)

#: Names the NCCL that runs without a job take, instead of an installed one.
LIBRARY_VARIABLE = "BAGUA_NET_BENCH_LIBNCCL"

NCCL, RCCL = "NCCL", "RCCL"
_LIBRARY = "libnccl.so.2"
#: torch's wheel for ROCm has it without a number.
_RCCL_LIBRARIES = ("librccl.so.1", "librccl.so")
#: ROCm's own directory, where ROCM_PATH names no other.
ROCM = Path("/opt/rocm")
_PROBE_TIMEOUT_S = 30.0


class NcclNotFound(BaguaNetError):
    """No NCCL is installed, or the one that was named does not exist."""


@dataclass(frozen=True)
class Nccl:
    """An NCCL or RCCL library. ``version`` is None where it could not be read (``problem`` says why)."""

    path: Path
    #: "mapped" (in this process), "wheel" (of this Python), "conda" (of this environment), "LD_LIBRARY_PATH", "system"
    #: (the linker's cache), "ROCm"
    found_by: str
    version: tuple[int, int, int] | None
    problem: str | None = None

    @property
    def product(self) -> str:
        """NCCL or RCCL."""
        return RCCL if self.path.name.startswith("librccl.") else NCCL

    @property
    def takes_path(self) -> bool:
        """May NCCL_NET_PLUGIN be a path? An unknown version counts as a current one."""
        return self.version is None or self.version >= FIRST_WITH_PATH

    @property
    def version_text(self) -> str:
        return "unknown version" if self.version is None else ".".join(map(str, self.version))

    @property
    def full_name(self) -> str:
        return f"{self.product} {self.version_text}"


def decode_version(code: int) -> tuple[int, int, int]:
    """(major, minor, patch) of ncclGetVersion's number: 2804 is 2.8.4, 23007 is 2.30.7 (nccl.h)."""
    if code < 10000:
        return code // 1000, code // 100 % 10, code % 100
    return code // 10000, code // 100 % 100, code % 100


def mapped_files(maps: str, pattern: str) -> list[str]:
    """The paths in a /proc/PID/maps whose file names match the pattern: each once, in order."""
    found: dict[str, None] = {}
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and re.fullmatch(pattern, Path(fields[5].removesuffix(" (deleted)")).name):
            found[fields[5]] = None
    return list(found)


def mapped_in_process() -> Path | None:
    """The libnccl or librccl that this process has loaded."""
    paths = mapped_files(Path("/proc/self/maps").read_text(errors="replace"), r"lib[nr]ccl\.so(\.\d+)*")
    return Path(paths[0]) if paths else None


def _directories_of(package: str) -> Iterator[Path]:
    """Where a package has its libraries. Does not import it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield Path(location) / "lib"


def _cached_paths() -> Iterator[Path]:
    """The libraries in the dynamic linker's cache."""
    for command in ("ldconfig", "/sbin/ldconfig"):
        try:
            done = subprocess.run(
                [command, "-p"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        for line in done.stdout.splitlines():
            name, _, path = line.strip().partition(" => ")
            if name.split(" ")[0] in (_LIBRARY, *_RCCL_LIBRARIES) and path:
                yield Path(path)
        return


def _candidates() -> Iterator[tuple[Path, str]]:
    """Where a library may be, best first, with the way in which it would be found."""
    mapped = mapped_in_process()
    if mapped is not None:
        yield mapped, "mapped"
    for directory in _directories_of("nvidia.nccl"):  # the wheel's, where torch's wheels look first (RPATH)
        yield directory / _LIBRARY, "wheel"
    for directory in _directories_of("torch"):  # torch's wheel for ROCm has its RCCL there
        yield from ((directory / name, "wheel") for name in _RCCL_LIBRARIES)
    yield Path(sys.prefix) / "lib" / _LIBRARY, "conda"  # where conda's torch looks (RPATH)
    for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if entry:
            yield from ((Path(entry) / name, "LD_LIBRARY_PATH") for name in (_LIBRARY, *_RCCL_LIBRARIES))
    for path in _cached_paths():
        yield path, "system"
    rocm = Path(os.environ.get("ROCM_PATH") or ROCM)
    yield from ((rocm / "lib" / name, "ROCm") for name in _RCCL_LIBRARIES)


def _version_in_process(path: Path) -> tuple[int, int, int]:
    code = ctypes.c_int(0)
    ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(code))
    return decode_version(code.value)


_PROBE = """
import ctypes, sys
code = ctypes.c_int(0)
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(code))
print(code.value)
"""


@functools.cache
def _version_by_probe(path: str) -> tuple[tuple[int, int, int] | None, str | None]:
    """(version, problem). A child process asks, so that this one does not load 200 MB."""
    command = [sys.executable, "-S", "-I", "-c", _PROBE, path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"exit status {done.returncode}"
    return decode_version(int(done.stdout)), None


def describe(path: Path, found_by: str) -> Nccl:
    """The library at a path, with its version."""
    if found_by == "mapped":
        return Nccl(path, found_by, _version_in_process(path))
    version, problem = _version_by_probe(str(path))
    return Nccl(path, found_by, version, problem)


def find(candidates: Iterable[tuple[Path, str]] | None = None, product: str | None = None) -> Nccl | None:
    """The NCCL or RCCL that a job of this environment will use: the first that exists of the one mapped here, the
    wheel's, conda's, LD_LIBRARY_PATH's, the system's and ROCm's.

    Args:
        product: only an NCCL, or only an RCCL.

    None: no shared library was found. torch may still have NCCL linked in statically.
    """
    found = next(_existing(_candidates() if candidates is None else candidates, product), None)
    return None if found is None else describe(*found)


def _existing(candidates: Iterable[tuple[Path, str]], product: str | None) -> Iterator[tuple[Path, str]]:
    for path, found_by in candidates:
        if os.path.isfile(path) and product in (None, Nccl(path, found_by, None).product):
            yield path, found_by


def libraries(named: str = "auto") -> list[Path]:
    """The NCCL libraries for a run without a job: that of this path; or for "auto" that of ``BAGUA_NET_BENCH_LIBNCCL``,
    or else all from which :func:`find` chooses, each once, best first. The paths are absolute.

    Raises:
        NcclNotFound: NCCL is not installed here, or the named file does not exist.
    """
    told = os.environ.get(LIBRARY_VARIABLE, "") if named == "auto" else named
    if told:
        path = Path(told).expanduser().absolute()
        if not os.path.isfile(path):
            source = f"{LIBRARY_VARIABLE}={told}" if named == "auto" else told
            raise NcclNotFound(f"{source}: no such file; name a {_LIBRARY}")
        return [path]
    found: dict[Path, Path] = {}
    for path, _ in _existing(_candidates(), NCCL):
        found.setdefault(path.resolve(), path.absolute())
    if not found:
        raise NcclNotFound(
            "no NCCL is installed here; pip install --no-deps nvidia-nccl-cu12==2.32.3, or name a "
            f"{_LIBRARY} in {LIBRARY_VARIABLE}"
        )
    return list(found.values())
