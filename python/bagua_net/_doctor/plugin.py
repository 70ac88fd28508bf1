# SPDX-License-Identifier: MIT
"""The doctor's checks of the plugin and of NCCL: library, settings, activation, limits. They change nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
from collections.abc import Callable

from .._activation import loading, switch
from .._activation.environment import is_old_rccl, why_not_with
from .._activation.status import status, version_of_jobs
from .._errors import BaguaNetError, PluginPathInvalid
from .._machine import rdma
from .._native.plugin import MAX_PATH_BYTES, check_path, plugin_path
from .._nccl import discovery
from .._settings import conf, identity, layers, parameters
from .._settings.homes import confs_read_by, remedies, user_conf_name
from .._settings.layers import Setting
from .check import Check, Checks

_FEW_DESCRIPTORS = 4096
_SHARED_MEMORY = "/dev/shm"
#: NCCL's proxies and shared-memory channels took 34 MB a rank with 2.18 to 2.30.
_SHARED_FOR_EIGHT = 8 * 34_000_000
#: ncclSocketDefaultMagic in NCCL's src/misc/socket.cc
_FIRST_WITH_SOCKET_MAGIC = (2, 30, 0)


def check_library() -> Checks:
    """The library of this installation."""
    path = plugin_path()
    found = loading.load(path)
    if not found.problem:
        yield Check("library", "ok", f"{path} loads, version {found.version}")
    else:
        yield Check("library", "fail", f"{path} does not load: {found.problem}", "build and install it on this machine")


def check_path_length() -> Checks:
    """NCCL truncates a longer path silently."""
    check_path(plugin_path())
    limit = f"{MAX_PATH_BYTES} bytes that NCCL keeps"
    yield Check("path", "ok", f"the library's has {len(os.fsencode(plugin_path()))} of the {limit}")


def check_copy() -> Checks:
    """`enable` needs a home, or options; jobs do not."""
    try:
        target = switch.Target.user(rccl=False)
        copies = switch.libraries(target)
        switch.check_writable(target)
    except PluginPathInvalid:
        raise
    except BaguaNetError as error:
        fact, _, fix = str(error).partition("; ")
        yield Check("copy", "warn", f"`bagua-net enable` would fail: {fact}", fix)
        return
    limit = f"{MAX_PATH_BYTES} bytes that NCCL keeps"
    length = max(len(os.fsencode(copy)) for copy in copies)
    yield Check("copy", "ok", f"`bagua-net enable` makes {' and '.join(map(str, copies))}: {length} of the {limit}")


def check_nccl() -> Checks:
    """Which NCCL or RCCL a job will use, and which form of NCCL_NET_PLUGIN it takes."""
    nccl = discovery.find()
    if nccl is None:
        fact = "no libnccl.so.2 and no librccl.so in this process, this Python, LD_LIBRARY_PATH or the system"
        fix = "run the doctor in the environment of the job; a torch that has NCCL linked in needs no fix"
        yield Check("NCCL", "warn", fact, fix)
    elif nccl.version is None:
        fix = "check that the file is whole and fits this machine"
        yield Check(nccl.product, "fail", f"{nccl.path} does not answer: {nccl.problem}", fix)
    elif is_old_rccl(nccl):
        fact, _, fix = why_not_with(nccl).removeprefix("RCCL ").partition("; ")
        yield Check(nccl.product, "fail", fact, fix)
    elif nccl.takes_path:
        reads = f", and reads {user_conf_name(nccl)}" if nccl.product == discovery.RCCL else ""
        fact = f"{nccl.version_text}, {nccl.path} ({nccl.found_by}): takes a path{reads}"
        yield Check(nccl.product, "ok", fact)
    else:
        fact = f"{nccl.version_text}, {nccl.path} ({nccl.found_by}): takes a name, not a path"
        yield Check("NCCL", "warn", fact, "`bagua-net run -- COMMAND` or activate(); `enable` needs NCCL 2.21")


def _check_version(plugin: Setting) -> Checks:
    """A copy that `enable` has made stays as it was when the package is replaced."""
    jobs, ours = version_of_jobs(plugin), loading.load(plugin_path()).version
    if jobs == ours:
        yield Check("activation", "ok", f"on, NCCL_NET_PLUGIN by {plugin.layer}")
    else:
        fact = f"on, but {plugin} is of version {jobs}, and this package of {ours}"
        yield Check("activation", "warn", fact, remedies(plugin.layer)[0])


def check_activation() -> Checks:
    """Off is healthy; half on is not."""
    found = status()
    if found.on:
        yield from _check_version(found.plugin)
    elif found.plugin.layer is None and found.network.value != "":
        yield Check("activation", "ok", "off")
    elif found.preset_hardware:
        yield Check("activation", "ok", f"off: {found.problem}")
    else:
        fact, _, fix = (found.problem or "").partition("; ")
        yield Check("activation", "warn", fact, fix)


def check_line_ends() -> Checks:
    """An editor of Windows leaves values that look right and are not."""
    nccl = discovery.find()
    if nccl is None or nccl.version is None or nccl.version >= discovery.FIRST_WITH_HOME_VARIABLE:
        return
    for path in confs_read_by(nccl):
        with contextlib.suppress(OSError):
            if b"\r\n" in path.read_bytes():
                fact = (
                    f"{path} has lines that end with CR LF, and {nccl.full_name} takes the CR for a part of the value"
                )
                yield Check("line ends", "warn", fact, f"sed -i 's/\\r$//' {shlex.quote(str(path))}")


def check_socket_magic() -> Checks:
    """NCCL_SOCKET_MAGIC concerns NCCL's own sockets, so it says nothing about the plugin's."""
    nccl = discovery.find()
    setting = layers.effective("NCCL_SOCKET_MAGIC", layers.of_a_job())
    if not setting.value:
        return
    where = f"{setting.value} ({setting.layer})"
    if not conf.is_number(setting.value):
        fact = f"{where} is no number: NCCL uses its own value"
        yield Check(setting.name, "warn", fact, "unset it, or a number such as 0x1234, the same on every rank")
    elif nccl is not None and nccl.version is not None and nccl.version < _FIRST_WITH_SOCKET_MAGIC:
        fact = f"{where}: {nccl.full_name} does not read it"
        yield Check(setting.name, "warn", fact, "unset it, or take NCCL 2.30")
    else:
        fact = f"{where}: for sockets that NCCL itself opens, the same on every rank; the plugin's have a random token"
        yield Check(setting.name, "ok", fact)


def check_parameters() -> Checks:
    """Every BAGUA_NET_* variable is a parameter, with a value in its range."""
    among = layers.of_a_job()
    rows = parameters.read(among)
    for row in rows:
        if row.error:
            fact, _, fix = row.error.removeprefix(f"{row.name}=").partition("; ")
            yield Check(row.name, "fail", f"{fact} ({row.layer})", fix)
    for one in parameters.unknown(rows, among):
        yield Check(one.name, "warn", f"{one.problem} ({one.layer})", one.fix)
    given = [f"{row.name}={row.value} ({row.layer})" for row in rows if row.set and not row.error]
    yield Check("parameters", "ok", f"{len(rows)} parameters, set: {', '.join(given) or 'none'}")


def check_identity() -> Checks:
    """Who may open streams of a job, and what that does not cover."""
    found = identity.of(parameters.read(layers.of_a_job()))
    beside = "torch's store, NCCL's bootstrap and gloo are not covered: their ports need a firewall"
    if found.problem:
        fact, _, fix = found.problem.partition("; ")
        yield Check("identity", "fail", fact, fix)
    elif found.path:
        yield Check("identity", "ok", f"by a secret, {found.protection}; {beside}")
    else:
        with_checksums = ", with checksums" if found.checksums else ""
        fact = f"none{with_checksums}: whoever sees the network can take part in a job (BAGUA_NET_SECRET_FILE)"
        yield Check("identity", "ok", fact)


def check_rdma() -> Checks:
    """NCCL uses one network per communicator."""
    found, setting = rdma.find(layers.of_a_job()), status()
    left = f"; {found.left}" if found.left else ""
    if found.used and setting.on:
        fact = f"RDMA is up and the plugin displaces it: {found.names}{left}"
        _, off = remedies(setting.plugin.layer)
        yield Check("RDMA", "warn", fact, f"keep RDMA unless it does not reach every host: {off}")
    elif found.used:
        fact = f"RDMA is up and the plugin would displace it: {found.names}{left}"
        yield Check("RDMA", "warn", fact, "leave the plugin off, unless RDMA does not reach every host")
    else:
        yield Check("RDMA", "ok", f"{found.left or 'no active port'}: nothing is displaced")


def check_descriptors() -> Checks:
    """A connection takes a descriptor per stream; extra streams stop at half of the limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FEW_DESCRIPTORS:
        yield Check("descriptors", "ok", f"a process may open {'any number' if soft < 0 else soft}")
    else:
        yield Check("descriptors", "warn", f"a process may open {soft}", "ulimit -n 65536")


def check_shared_memory() -> Checks:
    """NCCL puts its ranks' buffers there, and a rank that finds no space ends with an error or SIGBUS."""
    disk = os.statvfs(_SHARED_MEMORY)
    free = disk.f_bavail * disk.f_frsize
    fact = f"{_SHARED_MEMORY} has {free >> 20} MiB free; NCCL takes 34 MB for each rank of a host"
    if free >= _SHARED_FOR_EIGHT:
        yield Check("shared memory", "ok", fact)
    else:
        fix = f"docker run --shm-size=1g, or in a pod an emptyDir of medium Memory at {_SHARED_MEMORY}"
        yield Check("shared memory", "warn", fact, fix)


CHECKS: tuple[Callable[[], Checks], ...] = (
    check_library,
    check_path_length,
    check_copy,
    check_parameters,
    check_identity,
    check_nccl,
    check_activation,
    check_line_ends,
    check_socket_magic,
    check_rdma,
    check_descriptors,
    check_shared_memory,
)
