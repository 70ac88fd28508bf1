# SPDX-License-Identifier: MIT
"""Turns the plugin on for this process, and gives the variables that do it for another one."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from pathlib import Path

from .._errors import ActivationTooLate, ConflictingSetting, LibraryUnusable, UnsupportedNccl
from .._machine import rdma
from .._native.plugin import LIBRARY_NAME, NETWORK_NAME, SHORT_NAME, check_path, plugin_path
from .._nccl import discovery, state
from .._settings import layers

#: The earlier value of each variable that activate() set (None: unset), which deactivate() restores; and the value that
#: it wrote: deactivate() leaves alone a variable that was changed since.
_before: dict[str, str | None] = {}
_written: dict[str, str] = {}


def is_old_rccl(nccl: discovery.Nccl) -> bool:
    """Does it take only names, for which it looks for librccl-net-NAME.so? This library has another name."""
    return nccl.product == discovery.RCCL and not nccl.takes_path


def why_not_with(nccl: discovery.Nccl) -> str:
    """What to tell the user of such an RCCL."""
    return (
        f"{nccl.full_name} at {nccl.path} takes no path and loads only libraries named librccl-net-NAME.so; "
        "take RCCL 2.21 or later, which came with ROCm 6.3"
    )


def _check_supported(nccl: discovery.Nccl | None) -> None:
    """
    Raises:
        UnsupportedNccl: no variable makes this library load the plugin.
    """
    if nccl is not None and is_old_rccl(nccl):
        raise UnsupportedNccl(why_not_with(nccl))


def settings(path: Path, *, takes_path: bool) -> dict[str, str]:
    """The variables that turn on the library at ``path``, by its short name where NCCL takes no path.

    NCCL_NET is always set: without it, NCCL silently uses its own sockets when the plugin does not load. A reference
    count of 1, the default of NCCL 2.26 and 2.27, keeps the plugin loaded after a process's last communicator: NCCL
    2.28 and 2.29 cannot load it again, so the next communicator would fail (NVIDIA/nccl#1978).
    """
    if takes_path:
        check_path(path)
    return {
        "NCCL_NET_PLUGIN": str(path) if takes_path else SHORT_NAME,
        "NCCL_NET": NETWORK_NAME,
        "NCCL_NET_PLUGIN_REF_COUNT": "1",
    }


def env(path: Path | None = None) -> dict[str, str]:
    """The variables that turn the plugin on in a process yet to start, for example in Ray's ``runtime_env``.

    NCCL_NET_PLUGIN, NCCL_NET and NCCL_NET_PLUGIN_REF_COUNT; also LD_LIBRARY_PATH, beginning with the library's
    directory, where this environment's NCCL is 2.20 or older and takes no path.

    Args:
        path: the library as that process sees it; by default that of this installation.

    Raises:
        LibraryNotFound: the library was never built.
        PluginPathInvalid: NCCL would not take its path.
        UnsupportedNccl: this environment's RCCL is older than 2.21.
    """
    library = plugin_path() if path is None else path
    nccl = discovery.find()
    _check_supported(nccl)
    if nccl is None or nccl.takes_path:
        return settings(library, takes_path=True)
    search = [str(library.parent), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
    return settings(library, takes_path=False) | {"LD_LIBRARY_PATH": ":".join(dict.fromkeys(search))}


def is_ours(plugin: str) -> bool:
    """Does this value of NCCL_NET_PLUGIN name our library, in any directory?"""
    return plugin == SHORT_NAME or Path(plugin).name == LIBRARY_NAME


def _has_nccl_group() -> bool:
    """Does torch have a process group that uses NCCL, for any device? Does not import torch."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    # "nccl", or for a group of several devices "cpu:gloo,cuda:nccl"
    configs = getattr(world, "pg_backend_config", {})
    return any("nccl" in str(config).lower() for config in dict(configs).values())


def _check_in_time(nccl: discovery.Nccl | None) -> None:
    """Has NCCL chosen its network? It does so once per process, at the first communicator.

    Raises:
        ActivationTooLate: torch has a process group that uses NCCL, or NCCL itself has chosen.
    """
    if _has_nccl_group():
        raise ActivationTooLate(
            "torch.distributed already has an NCCL process group, and NCCL chooses its network once per process; "
            "call bagua_net.activate() before init_process_group()"
        )
    if nccl is not None and nccl.found_by == "mapped" and state.has_chosen(nccl):
        raise ActivationTooLate(
            f"{nccl.path} has chosen its network, and does so once per process; "
            "call bagua_net.activate() before the first communicator"
        )


def check_free(wanted: dict[str, str], *, instead: str) -> None:
    """Refuses to overwrite a user's setting.

    Args:
        instead: what the user can do to overwrite it.

    Raises:
        ConflictingSetting: NCCL_NET_PLUGIN or NCCL_NET has another value.
    """
    plugin = os.environ.get("NCCL_NET_PLUGIN", "")
    network = os.environ.get("NCCL_NET", "")
    if plugin and not is_ours(plugin):
        conflict = f"NCCL_NET_PLUGIN={plugin}"
    elif network and network.lower() != wanted["NCCL_NET"].lower():
        conflict = f"NCCL_NET={network}"
    else:
        return
    raise ConflictingSetting(f"{conflict} is set already; unset it, or {instead}")


def displaced_rdma(among: layers.Layers) -> str | None:
    """A sentence where a job with these settings would leave RDMA unused because of the plugin; None: it would not."""
    found = rdma.find(among)
    return f"RDMA is up ({found.names}) and NCCL will not use it beside the plugin" if found.used else None


def _warn_of_rdma(nccl: discovery.Nccl | None) -> None:
    """A job may want this, so it is no error, but it should not happen unnoticed."""
    sentence = displaced_rdma(layers.read(nccl))
    if sentence:
        advice = "leave out activate(), or say activate(force=True)"
        warnings.warn(f"{sentence}; {advice}", RuntimeWarning, stacklevel=3)


def _preload(path: Path) -> None:
    """Proves that the library loads. An NCCL that takes no path then finds it by its SONAME."""
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise LibraryUnusable(f"{path} does not load: {error}; build it on this machine") from error


def _check_parameters(nccl: discovery.Nccl | None) -> None:
    """Checks now what the first communicator would reject. Needs cffi; does nothing without it.

    Raises:
        ParameterInvalid: a value would be refused.
        LibraryNotFound, LibraryUnusable: the library's header is missing or belongs to another version.
    """
    try:
        from .._settings import parameters
    except ImportError:
        return
    for sentence in parameters.check(layers.read(nccl)):
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)


def activate(*, force: bool = False) -> dict[str, str]:
    """Makes the NCCL of this process, and of every process that inherits its environment, use the plugin.

    Call it before the first NCCL communicator: with torch, before ``init_process_group``. Repeated calls change
    nothing. It warns (RuntimeWarning) of a BAGUA_NET_* variable that is not a parameter.

    Args:
        force: overwrite another NCCL_NET_PLUGIN or NCCL_NET, and do not warn of active RDMA ports.

    Returns:
        the variables that turn the plugin on, as ``os.environ`` has them now.

    Raises:
        ActivationTooLate: NCCL has chosen its network already.
        ConflictingSetting: NCCL_NET_PLUGIN or NCCL_NET is set to something else.
        LibraryNotFound, LibraryUnusable: the library is missing or does not load.
        ParameterInvalid: a BAGUA_NET_* variable, of the environment or of a file that NCCL reads, has a bad value.
        PluginPathInvalid: NCCL would not take its path.
        UnsupportedNccl: this environment's RCCL is older than 2.21.
    """
    path = plugin_path()
    nccl = discovery.find()
    _check_supported(nccl)
    wanted = settings(path, takes_path=nccl is None or nccl.takes_path)
    if all(os.environ.get(name) == value for name, value in _written.items()) and _written == wanted:
        return wanted
    _check_in_time(nccl)
    if not force:
        check_free(wanted, instead="call bagua_net.activate(force=True)")
        _warn_of_rdma(nccl)
    _preload(path)
    _check_parameters(nccl)
    for name, value in wanted.items():
        _before.setdefault(name, os.environ.get(name))
        os.environ[name] = value
    _written.update(wanted)
    return wanted


def deactivate() -> None:
    """Undoes :func:`activate`; does nothing where that changed nothing.

    A variable that was changed since is left alone. Existing communicators keep their network.
    """
    for name, value in _before.items():
        if os.environ.get(name) != _written.get(name):
            continue
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()
    _written.clear()


def activated(name: str) -> bool:
    """Is the variable's present value the one that :func:`activate` wrote?"""
    return name in _written and os.environ.get(name) == _written[name]
