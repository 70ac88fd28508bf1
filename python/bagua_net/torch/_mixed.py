# SPDX-License-Identifier: MIT
"""Groups such as "cpu:bagua_net,cuda:nccl", for which "bagua_net" alone stands on a machine with CUDA devices.

torch makes no other backend for a group in Python. So such a group owns a second one, which torch makes of the other
backends, and hands it every operation on other devices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed import distributed_c10d as c10d

from .._torch_backend import NAME
from .._torch_internals import named, unknown
from ._group import ProcessGroupBaguaNet
from ._identity import CPU

#: torch's function that makes a group, and calls its backends.
_MAKING = named(c10d, "_new_process_group_helper", "backend", "device_id")


class Backends(NamedTuple):
    """What torch was asked for: the backend of each type of device, and the device that the group is bound to."""

    by_device: dict[str, str]
    device: torch.device | None

    def others(self) -> dict[str, str]:
        return {device: name for device, name in self.by_device.items() if device != CPU.type}

    def device_of_others(self) -> torch.device | None:
        return self.device if self.device is not None and self.device.type in self.others() else None


class Others(NamedTuple):
    """torch's own group of the other backends, and torch's flight recorder of it, which records while it is held."""

    group: Any
    recorder: Any = None


def requested() -> Backends:
    """For the group that torch is making now.

    torch tells a backend only of itself; the caller's caller has the rest as arguments.

    Raises:
        ValueError: ``bagua_net`` was asked for to serve other devices than the CPU.
        RuntimeError: torch was built without the backend of this machine's accelerator, or makes groups otherwise.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _MAKING.__code__:
        frame = frame.f_back
    if frame is None:
        raise unknown(f"it makes groups without {_MAKING.__module__}.{_MAKING.__name__}")
    backend, device = str(frame.f_locals["backend"]), frame.f_locals["device_id"]
    backends = _of_all_devices() if backend == NAME else dict(c10d.BackendConfig(backend).get_device_backend_map())
    wrong = [device for device, name in backends.items() if name == NAME and device != CPU.type]
    if wrong:
        raise ValueError(
            f'bagua_net: it serves CPU tensors and was asked to serve {", ".join(wrong)}; use "cpu:{NAME}", and '
            "another backend there"
        )
    return Backends(backends, device)


def _of_all_devices() -> dict[str, str]:
    """The name alone stands for the CPU and, where this machine has an accelerator, torch's own backend for it."""
    backends: dict[str, str] = {CPU.type: NAME}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    other = None if accelerator is None else c10d.Backend.default_device_backend_map.get(accelerator.type)
    if accelerator is None or other is None:
        return backends
    if not getattr(c10d, f"is_{other}_available", lambda: True)():
        raise RuntimeError(
            f'bagua_net: this machine has a {accelerator.type} device, for which "{NAME}" takes {other}, and this '
            f'torch was built without {other}; use "cpu:{NAME}" for a group of CPU tensors alone'
        )
    return backends | {accelerator.type: other}


def make_others(request: Backends, options: Any, backend_options: Any) -> Others:
    """Made by torch, which then forgets them: their owner ends them."""
    name, others = f"{options.group_id}:others", request.others()
    group, _ = c10d._new_process_group_helper(
        options.group_size,
        options.group_rank,
        options.global_ranks_in_group,
        ",".join(f"{device}:{backend}" for device, backend in others.items()),
        options.store,
        name,
        backend_options,
        timeout=options.timeout,
        device_id=request.device_of_others(),
        group_desc=name,
    )
    world = c10d._world
    for register in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        register.pop(group, None)
    for groups in world.tags_to_pg.values():
        groups[:] = [known for known in groups if known is not group]
    recorder = getattr(world, "pg_flight_recorder_hooks", {}).pop(group, None)  # torch >= 2.15
    c10d._unregister_process_group(name)
    first = c10d.Backend.backend_type_map.get(next(iter(others.values())))
    if first is not None:  # beside a backend that it does not know, torch has chosen none, and would warn at the end
        group._set_default_backend(first)
    return Others(group, recorder)


class MixedGroup(ProcessGroupBaguaNet):
    """A group with other backends for other devices."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str, others: Others) -> None:
        """``others``: of the same ranks; they end with this group."""
        super().__init__(store, rank, size, timeout, name)
        self._others, self._recorder = others

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU, *self._others._device_types] if self._is_complete() else []

    def _get_backend(self, device: torch.device) -> Any:
        """torch connects a group's backend to its device when it has made the group. The other backend is connected
        already, and a second time NCCL would make another communicator: while torch makes this group, it has none.
        """
        return self if _is_cpu(device) or not self._is_complete() else self._others._get_backend(device)

    # ---- operations ----

    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        device = getattr(opts, "device", None)
        if device is None or _is_cpu(device):
            return super().barrier(opts, timeout=timeout)
        return self._others.barrier(opts)

    def _start_coalescing(self, device: torch.device) -> None:
        if _is_cpu(device):
            super()._start_coalescing(device)
        else:
            self._others._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return super()._end_coalescing(device) if _is_cpu(device) else self._others._end_coalescing(device)

    # ---- the group itself ----

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> Any:
        """All backends split, or those of ``device_types``."""
        wanted = self._device_types if device_types is None else [torch.device(device) for device in device_types]
        others = [device for device in wanted if not _is_cpu(device)]
        if not others:
            return super().split_group(new_ranks, timeout, opts, group_name, group_desc)
        chosen = {} if device_types is None else {"device_types": others}
        rest = self._others.split_group(list(new_ranks), timeout, opts, group_name, group_desc, **chosen)
        if len(others) == len(wanted):
            return rest
        part = self._part(new_ranks, timeout, group_name)
        return None if part is None else self._described(MixedGroup(*part, Others(rest)), group_desc)

    splitGroup = split_group  # noqa: N815  (C++'s name)

    def merge_remote_group(self, *_: Any, **__: Any) -> Any:
        """Each backend would number the ranks for itself."""
        raise RuntimeError(f"bagua_net, {self._label}: merge_remote_group: a group with several backends cannot merge")

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        for device in self._others._device_types:
            self._others._get_backend(device)._set_default_timeout(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        super().shutdown()
        self._others.shutdown()

    def abort(self) -> None:
        super().abort()
        self._others.abort()


def _is_cpu(device: Any) -> bool:
    return bool(torch.device(device).type == CPU.type)


# ---- operations on tensors: each goes to the backend of its first tensor's device ----


def _first(arguments: Iterable[Any]) -> torch.Tensor | None:
    for argument in arguments:
        while isinstance(argument, (list, tuple)) and argument:
            argument = argument[0]
        if isinstance(argument, torch.Tensor):
            return argument
    return None


def _routed(name: str) -> Callable[..., Any]:
    own = getattr(ProcessGroupBaguaNet, name)

    def operation(self: MixedGroup, *arguments: Any, **named: Any) -> Any:
        tensor = _first((*arguments, *named.values()))
        if tensor is None or tensor.is_cpu:
            return own(self, *arguments, **named)
        return getattr(self._others, name)(*arguments, **named)

    return operation


for _name in (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "gather_single",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
):
    setattr(MixedGroup, _name, _routed(_name))
