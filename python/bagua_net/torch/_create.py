# SPDX-License-Identifier: MIT
"""Makes a group for torch, after checks once per process and once per group."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

import torch
import torch.distributed as dist

from .._native import library
from .._native.plugin import plugin_path
from .._settings import layers, parameters
from .._torch_backend import NAME
from .._torch_internals import TRIED
from ._group import ProcessGroupBaguaNet
from ._mixed import MixedGroup, make_others, requested

_log = logging.getLogger("bagua_net.torch")


@functools.cache
def _check_version() -> None:
    """Once per process."""
    if ".".join(torch.__version__.split(".")[:2]) not in TRIED:
        tried = f"{TRIED[0]} to {TRIED[-1]}"
        _log.warning("the %s backend was tried with torch %s, and this is %s", NAME, tried, torch.__version__)


@functools.cache
def _read_settings() -> None:
    """Once per process, before the library reads the environment: where NCCL does not run, nobody else puts there what
    NCCL's files have."""
    among = layers.of_a_job()
    for sentence in parameters.check(among):
        _log.warning("%s", sentence)
    layers.apply(among)


#: C text that the library keeps a pointer to, once it is known.
_kept: list[Any] = []


def _honour_gloo(rank: int, *, beside_nccl: bool) -> None:
    """Once per process, before the first connection: jobs that come from gloo name the interface by its variable, and
    may expect its encryption.

    Args:
        beside_nccl: NCCL is in this process, and may have this very library, which has one choice of interfaces.
    """
    if _kept:
        return
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    _kept.append(library.ffi.new("char[]", f"={names}".encode()))  # gloo's are whole names
    level = logging.WARNING if rank == 0 else logging.INFO
    transport = os.environ.get("GLOO_DEVICE_TRANSPORT", "")
    if "TLS" in transport and os.environ.get("BAGUA_NET_ENCRYPT", "0") == "0":
        _log.log(level, "GLOO_DEVICE_TRANSPORT=%s is gloo's alone: BAGUA_NET_ENCRYPT encrypts here", transport)
    if not names or "NCCL_SOCKET_IFNAME" in os.environ:
        return
    if beside_nccl and os.environ.get("NCCL_NET_PLUGIN") == str(plugin_path()):
        _log.log(level, "GLOO_SOCKET_IFNAME=%s has no effect, since NCCL's would follow: NCCL_SOCKET_IFNAME has", names)
        return
    library.load().bnet_interface_prefer(_kept[-1])
    _log.log(level, "GLOO_SOCKET_IFNAME=%s chooses the interface, since NCCL_SOCKET_IFNAME is not set", names)


def create(options: Any, backend_options: Any) -> Any:
    """Called by torch for ``init_process_group("bagua_net")`` and ``new_group``, on the ranks of the group.

    Raises:
        ValueError: options for the backend were given; it has none, its parameters are ``BAGUA_NET_*``. Or it was asked
            for to serve other devices than the CPU.
        RuntimeError: this machine has an accelerator, and torch was built without its backend.
        ParameterInvalid: one of these has a bad value. A name that is not a parameter is only logged.
        LibraryNotFound, LibraryUnusable: see their documentation.
        DistBackendError: no network to listen on.
    """
    _check_version()
    _read_settings()
    request = requested()
    mixed = bool(request.others())
    _honour_gloo(options.group_rank, beside_nccl=mixed)
    if backend_options is not None and not mixed:
        raise ValueError(f"the {NAME} backend has no options; its parameters are BAGUA_NET_* (`bagua-net params`)")
    arguments = (options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
    if mixed:
        group: ProcessGroupBaguaNet = MixedGroup(*arguments, make_others(request, options, backend_options))
    else:
        group = ProcessGroupBaguaNet(*arguments)
    if request.device is not None:
        group.bound_device_id = request.device
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        group.compare_calls()
    return group
