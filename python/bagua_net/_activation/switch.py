# SPDX-License-Identifier: MIT
"""``enable`` and ``disable`` without the terminal: plans the changes of files, then makes them."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from .._errors import NotWritable, RdmaDisplaced, UnsupportedNccl
from .._machine import rdma
from .._native.plugin import plugin_path
from .._nccl import discovery
from .._settings import homes, layers
from . import conf_block, environment, library_copy


@dataclass(frozen=True)
class Target:
    """Configuration files, each with the directory of the library's copy that it points at."""

    files: tuple[tuple[Path, Path], ...]

    @property
    def confs(self) -> tuple[Path, ...]:
        return tuple(conf for conf, _ in self.files)

    @property
    def copies(self) -> dict[Path, list[Path]]:
        """The directories of copies, each with the files that point at it."""
        found: dict[Path, list[Path]] = {}
        for conf, copy in self.files:
            found.setdefault(copy, []).append(conf)
        return found

    @classmethod
    def user(cls, *, rccl: bool) -> Target:
        """The .nccl.conf of both homes, or only of the one that this user may write to. Each names a copy in its own
        home: the other one may be that of a single job, or of a single host.

        Args:
            rccl: as well the .rccl.conf, which RCCL reads instead.

        Raises:
            BaguaNetError: this user has no home.
        """
        if not homes.homes():
            raise library_copy.no_home()
        confs = homes.user_confs() + (homes.user_confs(discovery.RCCL) if rccl else [])
        files = tuple((path, library_copy.user_directory(path.parent)) for path in confs)
        writable = tuple((path, copy) for path, copy in files if os.access(path.resolve().parent, os.W_OK))
        return cls(writable or files)

    @classmethod
    def system(cls, *, rccl: bool) -> Target:
        """/etc/nccl.conf, for every user, and as well /etc/rccl.conf."""
        confs = (homes.system_conf(), *((homes.system_conf(discovery.RCCL),) if rccl else ()))
        return cls(tuple((path, library_copy.SYSTEM_DIRECTORY) for path in confs))

    @classmethod
    def file(cls, path: Path) -> Target:
        """One file, as NCCL_CONF_FILE may name it."""
        return cls(((path.absolute(), library_copy.user_directory()),))


@dataclass(frozen=True)
class Change:
    """A file's bytes before and after; None: no file."""

    path: Path
    before: bytes | None
    after: bytes | None

    @property
    def is_one(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """In the format of ``diff -u``; bytes that are not UTF-8 appear as escapes."""
        old_name, old = self._side(self.before)
        new_name, new = self._side(self.after)
        lines = difflib.unified_diff(old, new, old_name, new_name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def _side(self, content: bytes | None) -> tuple[str, list[str]]:
        """The name and the lines of one side. As for NCCL, only a line feed ends a line."""
        if content is None:
            return "/dev/null", []
        text = content.decode(errors="backslashreplace")
        return str(self.path), re.findall(r"[^\n]*\n|[^\n]+", text)


def rccl_is_here() -> bool:
    """Is there an RCCL that can load the plugin, whether a job of this environment would use it or not?"""
    found = discovery.find(product=discovery.RCCL)
    return found is not None and found.takes_path


def rccl_is_enabled(*, system: bool) -> bool:
    """Does a file that RCCL reads have the block?"""
    paths = [homes.system_conf(discovery.RCCL)] if system else homes.user_confs(discovery.RCCL)
    return any(_has_block(path) for path in paths)


def _has_block(path: Path) -> bool:
    try:
        return conf_block.has_block(conf_block.read(path))
    except PermissionError:
        return False


def _settings_with(target: Target) -> layers.Layers:
    """The settings of a job that reads one of the target's files."""
    read = homes.confs_read_by(discovery.find())
    if not any(path.absolute() in target.confs for path in read):
        read = [*target.confs, read[-1]]  # the file for all users is read after each of them
    return layers.read_from(read)


def check_machine(target: Target, *, rccl: bool, per_communicator: bool) -> str | None:
    """Is the plugin an improvement here, and can a configuration file turn it on?

    Args:
        target: the files to write; a job reads what else they say of RDMA.
        rccl: for RCCL as well.
        per_communicator: a communicator may choose RDMA, so nothing is displaced.

    Returns:
        a sentence about the RDMA ports that NCCL was told not to use; None: there are none.

    Raises:
        UnsupportedNccl: the NCCL of this environment takes no path.
        RdmaDisplaced: an RDMA port is active, and NCCL would use it.
    """
    nccl = discovery.find()
    for one in (nccl, discovery.find(product=discovery.RCCL) if rccl else None):
        if one is not None and environment.is_old_rccl(one):
            raise UnsupportedNccl(environment.why_not_with(one))
    if nccl is not None and not nccl.takes_path:
        raise UnsupportedNccl(
            f"{nccl.full_name} at {nccl.path} takes no path, so no file can name the plugin; "
            "start jobs with `bagua-net run -- COMMAND`, or call bagua_net.activate() in them"
        )
    found = rdma.find(_settings_with(target))
    if found.used and not per_communicator:
        raise RdmaDisplaced(
            f"RDMA is up ({found.names}) and NCCL would not use it beside the plugin; "
            "--force enables the plugin anyway; NCCL_IB_DISABLE=1 says that NCCL is not to use it"
        )
    return found.left or None


def stand_in(target: Target) -> Path | None:
    """The file that NCCL reads here instead of all the target's files; None: it reads one of those."""
    first, *others = homes.confs_read_by(discovery.find())
    named = os.environ.get("NCCL_CONF_FILE")
    if not named or first != Path(named) or any(path.absolute() in target.confs for path in (first, *others)):
        return None
    return first


def user_conf_name() -> str:
    """The name of the file that a job's NCCL or RCCL reads in the home."""
    return homes.user_conf_name(discovery.find())


def _settings(copy: Path, *, per_communicator: bool) -> dict[str, str]:
    path = library_copy.library(copy)
    return environment.settings(path, takes_path=True, per_communicator=per_communicator)


def overridden(target: Target, *, per_communicator: bool) -> dict[str, str]:
    """The target's settings that the environment overrides, with the values that would make the plugin effective, and
    that of an image's tuner which goes with its plugin."""
    wanted = _settings(next(iter(target.copies)), per_communicator=per_communicator)
    given = {name: os.environ[name] for name in ("NCCL_NET_PLUGIN", "NCCL_NET") if name in os.environ}
    if environment.is_ours(given.get("NCCL_NET_PLUGIN", "")):
        del given["NCCL_NET_PLUGIN"]
    found = {name: wanted[name] for name in given if name in wanted and given[name].lower() != wanted[name].lower()}
    return found | environment.without_tuner([(layers.ENVIRONMENT, dict(os.environ))]) if found else {}


def plan_enable(target: Target, *, force: bool, per_communicator: bool) -> list[Change]:
    """The changes that enabling would make.

    Args:
        per_communicator: without NCCL_NET, so that a communicator may choose another network.
        force: put the block above other settings of NCCL_NET_PLUGIN and NCCL_NET, instead of refusing.

    Raises:
        ConflictingSetting: without force, a file has another value for one of these.
        ConfFileDamaged: a block has no end.
        PluginPathInvalid: NCCL would not take the copy's path.
    """
    changes = []
    for path, copy in target.files:
        settings = _settings(copy, per_communicator=per_communicator)
        before = conf_block.read(path)
        if not force:
            conf_block.check_conflict(path, before, settings)
        if per_communicator:
            conf_block.check_absent(path, before, "NCCL_NET")
        changes.append(Change(path, before, conf_block.with_block(before, settings)))
    return changes


def check_writable(target: Target) -> None:
    """May this user write what enabling writes?

    Raises:
        NotWritable: a directory is missing, or this user may not write to it, or something else has a file's name.
    """
    if library_copy.SYSTEM_DIRECTORY in target.copies:
        remedies = ("run it as root, or leave out --system",) * 2
    else:
        elsewhere = "use --conf FILE with a file elsewhere, and NCCL_CONF_FILE=FILE in the job"
        remedies = elsewhere, "set XDG_DATA_HOME to a directory that it may write to"
    for path in target.confs:
        directory = path.resolve().parent
        if not os.path.isdir(directory):
            raise NotWritable(f"{path}: there is no directory {directory}; make it, or {remedies[0]}")
        if not os.access(directory, os.W_OK | os.X_OK):
            raise NotWritable(f"{path}: this user may not write there; {remedies[0]}")
        conf_block.check_regular(path)
    for copy in target.copies:
        present = next(one for one in (copy, *copy.parents) if os.path.lexists(one))
        if not os.path.isdir(present) or not os.access(present, os.W_OK | os.X_OK):
            raise NotWritable(f"{copy}, for the library's copy: this user may not write there; {remedies[1]}")


def libraries(target: Target) -> list[Path]:
    """The copies that enabling makes.

    Raises:
        PluginPathInvalid: NCCL would not take the path of one.
    """
    return [library_copy.library(copy) for copy in target.copies]


def enable(target: Target, changes: list[Change]) -> None:
    """Makes the copies, then the changes: a file never names a library that does not exist yet.

    Raises:
        LibraryUnusable: a copy does not load from its place, or would replace one for another processor.
        OSError: the system's error. In each case the files are as before, and a copy that none of them needs is gone.
    """
    made = []
    try:
        for copy, confs in target.copies.items():
            library_copy.refresh(plugin_path(), copy, confs)
            made.append(copy)
        _apply(changes)
    except BaseException:
        for copy in made:
            with contextlib.suppress(OSError):
                library_copy.release(copy, target.copies[copy])
        raise


def plan_disable(target: Target) -> list[Change]:
    """The changes that disabling would make.

    Raises:
        NotWritable: something else has a file's name.
        ConfFileDamaged: a block has no end.
    """
    changes = []
    for path in target.confs:
        conf_block.check_regular(path)
        before = conf_block.read(path)
        changes.append(Change(path, before, conf_block.without_block(before)))
    return changes


def disable(target: Target, changes: list[Change]) -> list[Path]:
    """Makes the changes, then removes each copy that no file names. Returns the directories of these."""
    _apply(changes)
    return [copy for copy, confs in target.copies.items() if library_copy.release(copy, confs)]


def _apply(changes: list[Change]) -> None:
    """All of them or none."""
    made: list[Change] = []
    try:
        for change in changes:
            if change.is_one:
                conf_block.write(change.path, change.after)
                made.append(change)
    except BaseException:
        for change in made:
            with contextlib.suppress(OSError):
                conf_block.write(change.path, change.before)
        raise
