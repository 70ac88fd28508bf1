# SPDX-License-Identifier: MIT
"""The sources of a job's variables: the environment, then the configuration files that its NCCL reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .._nccl import discovery
from . import conf, homes

ENVIRONMENT = "environment"
_OURS = "BAGUA_NET_"
#: The benchmark's, of which one is a secret, and the tests'.
_NOT_OF_JOBS = ("BAGUA_NET_BENCH_", "BAGUA_NET_TEST_")
#: The variables that the plugin reads; NCCL_DEBUG is one more.
_PREFIXES = (_OURS, "NCCL_SOCKET_")


@dataclass(frozen=True)
class Setting:
    """A variable as NCCL will see it in a job of this environment."""

    name: str
    value: str | None
    #: "environment", "activate()", or the path of the configuration file that sets it; None: not set
    layer: str | None

    def __str__(self) -> str:
        return f"{self.name}={self.value} ({self.layer})"


Layers = list[tuple[str, dict[str, str]]]


def read(nccl: discovery.Nccl | None) -> Layers:
    """(name, settings) of each layer, strongest first: the environment, then the files that this NCCL reads."""
    return read_from(homes.confs_read_by(nccl))


def read_from(confs: Iterable[Path]) -> Layers:
    """The same for a job that reads these files, strongest first."""
    found: Layers = [(ENVIRONMENT, dict(os.environ))]
    for path in confs:
        try:
            content = path.read_bytes()
        except OSError:
            continue  # NCCL as well ignores a file that it cannot read
        found.append((str(path), conf.parse(content)))
    return found


def without(among: Layers, names: Iterable[str | Path]) -> Layers:
    """The layers but for these."""
    left_out = {str(name) for name in names}
    return [one for one in among if one[0] not in left_out]


def of_a_job() -> Layers:
    """The layers of a job of this environment."""
    return read(discovery.find())


def effective(name: str, among: Layers) -> Setting:
    """The variable's value in the strongest layer that has it."""
    for layer, settings in among:
        if name in settings:
            return Setting(name, settings[name], layer)
    return Setting(name, None, None)


def names(prefixes: str | tuple[str, ...], among: Layers) -> list[str]:
    """The variables with one of these prefixes, of all layers, sorted."""
    return sorted({name for _, settings in among for name in settings if name.startswith(prefixes)})


def of_jobs(among: Layers) -> list[str]:
    """The BAGUA_NET_* variables that are meant for jobs, of all layers, sorted."""
    return [name for name in names(_OURS, among) if not name.startswith(_NOT_OF_JOBS)]


def from_files(among: Layers) -> list[Setting]:
    """The plugin's variables that only a file sets. NCCL puts them into the environment; without NCCL nothing does."""
    found = (effective(name, among) for name in names(_PREFIXES, among))
    return [setting for setting in found if setting.layer != ENVIRONMENT]


def apply(among: Layers) -> list[Setting]:
    """Adds to this process's environment the plugin's variables that NCCL would add; it overwrites none.

    Returns:
        the added settings.
    """
    added = from_files(among)
    os.environ.update({setting.name: setting.value or "" for setting in added})
    return added


@contextmanager
def applied(among: Layers) -> Iterator[None]:
    """Inside the block, :func:`apply` is in effect. For one thread at a time."""
    added = apply(among)
    try:
        yield
    finally:
        for setting in added:
            del os.environ[setting.name]
