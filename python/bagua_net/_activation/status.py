# SPDX-License-Identifier: MIT
"""Is the plugin on? The settings, their sources, and the processes that have the library loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from .._native.plugin import LIBRARY_NAME, NETWORK_NAME, SHORT_NAME, plugin_path
from .._nccl import discovery
from .._settings import homes, layers
from .._settings.layers import Layers, Setting
from . import environment, loading, presets


@dataclass(frozen=True)
class Process:
    """A process that has the library loaded."""

    pid: int
    command: str
    library: str
    #: the user that it runs as
    uid: int


@dataclass(frozen=True)
class Status:
    """The result of :func:`status`."""

    #: a job started now would use the plugin
    on: bool
    #: why it is off, and what to do; None: it is on
    problem: str | None
    #: whose images preset the setting that turns it off, and what is here of the hardware that it is for
    preset: str | None
    preset_hardware: str | None
    #: NCCL_NET_PLUGIN and NCCL_NET
    plugin: Setting
    network: Setting
    #: every BAGUA_NET_* that is set
    parameters: tuple[Setting, ...]
    nccl: discovery.Nccl | None
    #: whether this process has the library loaded
    loaded: bool
    #: the other processes that have it loaded, of those that this user may inspect
    processes: tuple[Process, ...]


def _effective(name: str, among: Layers) -> Setting:
    found = layers.effective(name, among)
    if found.layer == layers.ENVIRONMENT and environment.activated(name):
        return replace(found, layer="activate()")
    return found


def _found_by_name(among: Layers) -> bool:
    """Would dlopen find libnccl-net-bagua.so by its bare name?"""
    if _loaded_by("self"):
        return True
    directories = among[0][1].get("LD_LIBRARY_PATH", "").split(":")
    return any(os.path.isfile(Path(directory) / LIBRARY_NAME) for directory in directories if directory)


def _why_unset(nccl: discovery.Nccl | None) -> str:
    named = os.environ.get("NCCL_CONF_FILE")
    if named and Path(named) in homes.confs_read_by(nccl):
        replaced = f"NCCL_CONF_FILE replaces ~/{homes.user_conf_name(nccl)}"
        return f"NCCL_NET_PLUGIN is not set; {homes.instead_of_conf_file(Path(named))}: {replaced}"
    return "NCCL_NET_PLUGIN is not set; `bagua-net enable`, or `bagua-net run -- COMMAND`"


def _problem(plugin: Setting, network: Setting, nccl: discovery.Nccl | None, among: Layers) -> str | None:
    """Why a job would not use the plugin; None: it would."""
    ours = [value for value in (plugin.value or "").split(",") if environment.is_ours(value)]
    for setting in (plugin, network):
        if setting.value == "" and setting.layer is not None:
            return f"{setting} names nothing, and a file's value does not replace it; unset it there"
    if not plugin.value:
        return _why_unset(nccl)
    if not ours:
        return _why_another(plugin, "names another plugin", among)
    if network.value and network.value.lower() != NETWORK_NAME.lower():
        return _why_another(network, "asks for another network", among)
    return _library_problem(ours[0], plugin.layer, nccl, among)


def _why_another(setting: Setting, what: str, among: Layers) -> str:
    preset = presets.find(setting, among)
    if preset is None:
        return f"{setting} {what}; unset it there"
    if preset.seen:
        return f"{preset}, and {preset.seen} is here; keep it, unless that does not reach every host"
    return f"{preset}, {preset.why_absent}; `bagua-net run` and activate() take its place"


def _library_problem(plugin: str, layer: str | None, nccl: discovery.Nccl | None, among: Layers) -> str | None:
    """Why NCCL would not find our library by this value of NCCL_NET_PLUGIN; None: it would."""
    if nccl is not None and environment.is_old_rccl(nccl):
        return environment.why_not_with(nccl)
    if nccl is not None and not nccl.takes_path and plugin != SHORT_NAME:
        return f"{nccl.full_name} at {nccl.path} takes no path; start jobs with `bagua-net run -- COMMAND`"
    if "/" not in plugin:
        found = _found_by_name(among)
        return None if found else f"no {LIBRARY_NAME} on LD_LIBRARY_PATH; `bagua-net run -- COMMAND` puts it there"
    if not os.path.lexists(plugin):
        return f"{plugin} ({layer}) does not exist; {', or '.join(dict.fromkeys(homes.remedies(layer)))}"
    loaded = loading.load(Path(plugin))
    if loaded.problem:
        return f"{plugin} ({layer}) cannot be loaded here: {loaded.problem}; {loaded.remedy}"
    return None


def version_of_jobs(plugin: Setting) -> str | None:
    """The version of the library that jobs load by this setting, which may be older than this package; None: none."""
    ours = next((one for one in (plugin.value or "").split(",") if environment.is_ours(one)), "")
    return loading.load(Path(ours) if "/" in ours else plugin_path()).version


def _loaded_by(pid: str) -> str | None:
    """The library's path in that process; None where it is not loaded or the process may not be inspected."""
    try:
        maps = Path("/proc", pid, "maps").read_text(errors="replace")
    except OSError:
        return None
    return next(iter(discovery.mapped_files(maps, r"libnccl-net-bagua\.so")), None)


def processes() -> tuple[Process, ...]:
    """The other processes with the library loaded, by pid, of those that this user may inspect."""
    found = []
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        library = _loaded_by(entry.name) if int(entry.name) != os.getpid() else None
        if library is None:
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            uid = entry.stat().st_uid
        except OSError:
            continue  # it ended meanwhile
        found.append(Process(int(entry.name), command, library, uid))
    return tuple(found)


def status() -> Status:
    """The settings, their sources, and the processes that have the library loaded. Changes nothing."""
    nccl = discovery.find()
    among = layers.read(nccl)
    plugin, network = _effective("NCCL_NET_PLUGIN", among), _effective("NCCL_NET", among)
    problem = _problem(plugin, network, nccl, among)
    in_the_way = network if plugin.value and environment.is_ours(plugin.value) else plugin
    preset = presets.find(in_the_way, among)
    return Status(
        on=problem is None,
        problem=problem,
        preset=preset.preset.images if preset else None,
        preset_hardware=preset.seen or None if preset else None,
        plugin=plugin,
        network=network,
        parameters=tuple(_effective(name, among) for name in layers.of_jobs(among)),
        nccl=nccl,
        loaded=_loaded_by("self") is not None,
        processes=processes(),
    )
