# SPDX-License-Identifier: MIT
"""Turns the plugin on for this process, and gives the variables that do it for another one."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from .._errors import ActivationTooLate, ConflictingSetting, LibraryUnusable, UnsupportedNccl
from .._machine import rdma
from .._native.plugin import LIBRARY_NAME, NETWORK_NAME, SHORT_NAME, check_path, plugin_path
from .._nccl import discovery, state
from .._settings import layers
from . import presets

_SECRET = "BAGUA_NET_SECRET_FILE"
_SEARCH = "LD_LIBRARY_PATH"
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


def settings(path: Path, *, takes_path: bool, per_communicator: bool = False) -> dict[str, str]:
    """The variables that turn on the library at ``path``, by its short name where NCCL takes no path.

    NCCL_NET is set unless each communicator shall choose, because it overrides their choice: without it, NCCL silently
    uses its own sockets when the plugin does not load. A reference count of 1, the default of NCCL 2.26 and 2.27, keeps
    the plugin loaded after a process's last communicator: NCCL 2.28 and 2.29 cannot load it again, so the next
    communicator would fail (NVIDIA/nccl#1978).
    """
    if takes_path:
        check_path(path)
    return {
        "NCCL_NET_PLUGIN": str(path) if takes_path else SHORT_NAME,
        **({} if per_communicator else {"NCCL_NET": NETWORK_NAME}),
        "NCCL_NET_PLUGIN_REF_COUNT": "1",
    }


def env(path: Path | None = None, *, per_communicator: bool = False) -> dict[str, str]:
    """The variables that turn the plugin on in a process yet to start, for example in Ray's ``runtime_env``.

    NCCL_NET_PLUGIN, NCCL_NET and NCCL_NET_PLUGIN_REF_COUNT; also LD_LIBRARY_PATH, beginning with the library's
    directory, where this environment's NCCL is 2.20 or older and takes no path. With them come the BAGUA_NET_*
    parameters of this environment, which launchers would drop: among them the secret's file and encryption.

    Args:
        path: the library as that process sees it; by default that of this installation.
        per_communicator: without NCCL_NET, so that a communicator may choose another network.

    Raises:
        LibraryNotFound: the library was never built.
        PluginPathInvalid: NCCL would not take its path.
        UnsupportedNccl: this environment's RCCL is older than 2.21.
    """
    library = plugin_path() if path is None else path
    nccl = discovery.find()
    _check_supported(nccl)
    own: layers.Layers = [(layers.ENVIRONMENT, dict(os.environ))]
    given = {name: os.environ[name] for name in layers.of_jobs(own)}
    if nccl is None or nccl.takes_path:
        return settings(library, takes_path=True, per_communicator=per_communicator) | given
    return settings(library, takes_path=False, per_communicator=per_communicator) | _found_by_name(library) | given


def _found_by_name(library: Path) -> dict[str, str]:
    """For processes yet to start: the linker reads it at their start."""
    search = [str(library.parent), *filter(None, os.environ.get(_SEARCH, "").split(":"))]
    return {_SEARCH: ":".join(dict.fromkeys(search))}


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


@dataclass(frozen=True)
class Claim:
    """What becomes of the settings that are in the plugin's way and that nobody chose."""

    #: a sentence about each
    sentences: list[str] = field(default_factory=list)
    #: one of them stays, because its hardware is here: the plugin must not be turned on
    stays: bool = False
    #: what is to be set in addition
    variables: dict[str, str] = field(default_factory=dict)


def _in_the_way(wanted: dict[str, str], among: layers.Layers) -> list[layers.Setting]:
    """The settings of the environment that name another plugin or network."""
    plugin, network = (layers.effective(name, among[:1]) for name in (presets.PLUGIN, presets.NETWORK))
    found = [plugin] if plugin.value and not is_ours(plugin.value) else []
    if presets.NETWORK in wanted and (network.value or NETWORK_NAME).lower() != NETWORK_NAME.lower():
        found.append(network)
    return found


def claim(wanted: dict[str, str], among: layers.Layers, *, instead: str) -> Claim:
    """May the plugin be turned on beside what the environment has?

    A user's setting is not overwritten, nor is an image's whose hardware is here. The plugin takes the place of an
    image's for hardware that is not here.

    Args:
        wanted: the variables that turn the plugin on.
        instead: what the user can do to overwrite a setting.

    Raises:
        ConflictingSetting: NCCL_NET_PLUGIN or NCCL_NET has a user's value; or, where each communicator shall choose,
            NCCL_NET has any; or an image's setting stays, and the job is to have a secret.
    """
    check_choice(wanted, among)
    found: list[presets.Found] = []
    for setting in _in_the_way(wanted, among):
        preset = presets.find(setting, among)
        if preset is None:
            raise ConflictingSetting(f"{setting.name}={setting.value} is set already; unset it, or {instead}")
        found.append(preset)
    for preset in found:
        if preset.seen:
            _check_clear(preset, among, instead)
            sentence = f"{preset}, and {preset.seen} is here: it stays, and the plugin is off; to turn it on, {instead}"
            return Claim([sentence], stays=True)
    sentences = [f"{one}; {one.why_absent}: the plugin takes its place" for one in found]
    tuner = _absent_tuner(among)
    if tuner is None:
        return Claim(sentences)
    return Claim([*sentences, f"{tuner}; {tuner.why_absent}: it is turned off"], variables=without_tuner(among))


def _absent_tuner(among: layers.Layers) -> presets.Found | None:
    """An image's, for hardware that is not here."""
    found = presets.find(layers.effective(presets.TUNER, among[:1]), among)
    return None if found is None or found.seen else found


def without_tuner(among: layers.Layers) -> dict[str, str]:
    """The variable that turns off an image's tuner whose hardware is missing; empty if no such tuner is set."""
    return {presets.TUNER: "none"} if _absent_tuner(among) else {}


def _check_clear(preset: presets.Found, among: layers.Layers, instead: str) -> None:
    """Nobody who has asked for a secret gets a job in clear."""
    secret = layers.effective(_SECRET, among)
    if secret.value:
        raise ConflictingSetting(
            f"{preset}, and {preset.seen} is here, so it would stay; but {secret} is for the plugin alone, and the "
            f"job would send in clear. Unset {_SECRET}, or {instead}"
        )


def check_choice(wanted: dict[str, str], among: layers.Layers) -> None:
    """Can a communicator choose its network, where that is wanted?

    Raises:
        ConflictingSetting: NCCL_NET is set.
    """
    network = layers.effective(presets.NETWORK, among)
    if presets.NETWORK not in wanted and network.value is not None:
        raise ConflictingSetting(f"{network} overrides the network of every communicator; unset it there")


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
    """Checks now what the first communicator would reject, and the interfaces. Needs cffi; does nothing without it.

    Raises:
        ParameterInvalid: a value would be refused.
        LibraryNotFound, LibraryUnusable: the library's header is missing or belongs to another version.
    """
    try:
        from .._machine import interfaces
        from .._settings import parameters
    except ImportError:
        return
    for sentence in (*parameters.check(layers.read(nccl)), *filter(None, [interfaces.complaint()])):
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)


def activate(*, force: bool = False, per_communicator: bool = False) -> dict[str, str]:
    """Makes the NCCL of this process, and of every process that inherits its environment, use the plugin.

    Call it before the first NCCL communicator: with torch, before ``init_process_group``. Repeated calls change
    nothing. It warns (RuntimeWarning) of a BAGUA_NET_* variable that is not a parameter, of an NCCL_SOCKET_IFNAME or
    BAGUA_NET_ADDRESS_PREFIX that leaves no interface, and of an image's preset: it takes the place of one whose
    hardware is not here, and leaves one whose hardware is.

    Args:
        force: overwrite another NCCL_NET_PLUGIN or NCCL_NET, and do not warn of active RDMA ports.
        per_communicator: do not set NCCL_NET, so that a communicator may choose another network by its netName.

    Returns:
        the variables that turn the plugin on, as ``os.environ`` has them now; none where an image's preset stays.

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
    wanted = settings(path, takes_path=nccl is None or nccl.takes_path, per_communicator=per_communicator)
    if _is_done(wanted):
        return dict(_written)
    _check_in_time(nccl)
    deactivate()
    if force:
        check_choice(wanted, layers.without(layers.read(nccl), [layers.ENVIRONMENT]))
    else:
        claimed = claim(wanted, layers.read(nccl), instead="call bagua_net.activate(force=True)")
        for sentence in claimed.sentences:
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        if claimed.stays:
            return {}
        if not per_communicator:
            _warn_of_rdma(nccl)
        wanted |= claimed.variables
    if nccl is not None and not nccl.takes_path:
        wanted |= _found_by_name(path)
    _preload(path)
    _check_parameters(nccl)
    _set(wanted, without=[] if presets.NETWORK in wanted else [presets.NETWORK])
    return wanted


def _is_done(wanted: dict[str, str]) -> bool:
    """Has an earlier call set this, and nothing changed it since?"""
    set_now = all(os.environ.get(name) == value for name, value in _written.items())
    return set_now and {name: _written[name] for name in _written if name not in (presets.TUNER, _SEARCH)} == wanted


def _set(variables: dict[str, str], *, without: list[str]) -> None:
    for name in (*variables, *without):
        _before[name] = os.environ.get(name)
    os.environ.update(variables)
    _written.update(variables)
    for name in without:
        os.environ.pop(name, None)


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
