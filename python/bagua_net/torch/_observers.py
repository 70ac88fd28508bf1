# SPDX-License-Identifier: MIT
"""What torch's tools see of an operation: torch.profiler spans, CommDebugMode a count.

Both watch torch's dispatcher, through which its own backends are called. A Python group is called without it.

A span begins and ends in one call. One that lasted from the call to the end of an asynchronous operation could end
after the profiler has, which then writes to memory that it has freed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.utils import _python_dispatch

from ._work import Work

_W = TypeVar("_W", bound=dist.Work)

#: CommDebugMode counts by these operators of torch.ops.c10d.
_OPERATORS = {
    "all_gather": "allgather_",
    "all_gather_single": "_allgather_base_",
    "all_reduce": "allreduce_",
    "all_reduce_coalesced": "allreduce_coalesced_",
    "all_reduce_quantized": "allreduce_",
    "all_to_all": "alltoall_",
    "all_to_all_single": "alltoall_base_",
    "broadcast": "broadcast_",
    "gather": "gather_",
    "reduce": "reduce_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_quantized": "_reduce_scatter_base_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "scatter": "scatter_",
}


def present() -> bool:
    """Does anyone watch this thread?"""
    return bool(_profiler_enabled()) or torch._C._len_torch_dispatch_stack() > 0


def observed(name: str, start: Callable[[], _W]) -> _W:
    """Starts an operation, named as torch.distributed's function, before their eyes."""
    start = _counted(name, start)
    if not _profiler_enabled():
        return start()
    with record_function(f"bagua_net:{name}"):
        work = start()
    if isinstance(work, Work):
        work.around_wait = functools.partial(_waits, name)
    return work


def _waits(name: str) -> contextlib.AbstractContextManager[Any]:
    return record_function(f"bagua_net:{name} wait") if _profiler_enabled() else contextlib.nullcontext()


class _Operator:
    """An operation in the form of torch's operators: CommDebugMode calls and counts it."""

    def __init__(self, packet: Any, start: Callable[[], Any]) -> None:
        self._overloadpacket = packet
        self._start = start

    def __call__(self) -> Any:
        return self._start()


def _counted(name: str, start: Callable[[], _W]) -> Callable[[], _W]:
    """The same, seen by all CommDebugModes that are on."""
    module = sys.modules.get("torch.distributed.tensor.debug._comm_mode")  # None: nobody can have made one
    if module is None or name not in _OPERATORS or torch._C._len_torch_dispatch_stack() == 0:
        return start
    debug_mode = getattr(module, "CommDebugMode", ())  # another thread may be importing the module
    packet = getattr(torch.ops.c10d, _OPERATORS[name])
    for mode in _python_dispatch._get_current_dispatch_mode_stack():
        if isinstance(mode, debug_mode):
            start = functools.partial(mode.__torch_dispatch__, _Operator(packet, start), ())
    return start
