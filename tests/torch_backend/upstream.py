# SPDX-License-Identifier: MIT
"""torch's own test cases of torch.distributed, run on existing ranks. Only the ranks import it: that takes seconds.

torch's runner would start a set of processes for each case. Here a case is only its function, without the decorators
that skip it for unknown backends or without GPUs.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import unittest
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from tests.support.rank import Here

os.environ.setdefault("BACKEND", "bagua_net")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29500")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_utils
from torch.testing._internal.common_distributed import DistTestCases
from torch.testing._internal.distributed import distributed_test

for _feature in ("ddp", "plugin", "subgroup"):
    DistTestCases.backend_feature[_feature].add("bagua_net")


class Case(distributed_test.DistributedTest._DistTestBase, distributed_test.TestDistBackend):  # type: ignore[misc]
    """A rank's part of a case."""

    here: Here

    def _barrier(self, *arguments: Any, **named: Any) -> None:
        """torch's barrier polls files and sleeps for tenths of seconds in between."""
        self.here.gloo.barrier().wait(timedelta(seconds=60))


class _HostMemory(TorchFunctionMode):  # type: ignore[misc]
    """Tensors that a case wants on a GPU are in host memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, named = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "cuda":
            return args[0]
        if named.get("device") is not None:
            named["device"] = "cpu"
        if name == "to" and len(args) > 1 and isinstance(args[1], (int, str, torch.device)):
            args = (args[0], "cpu", *args[2:])
        return func(*args, **named)


@contextlib.contextmanager
def _without_gpus() -> Iterator[None]:
    """A case for GPUs finds one for each rank, which is host memory."""
    make, move = DistributedDataParallel.__init__, torch.nn.Module.to

    def make_for_host(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *rest: Any, **named: Any
    ) -> None:
        make(self, module, None, None, *rest, **named)

    def move_within_host(self: Any, *where: Any, **named: Any) -> Any:
        return self if where and isinstance(where[0], (int, str, torch.device)) else move(self, *where, **named)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", move_within_host))
        stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", make_for_host))
        stack.enter_context(
            mock.patch.object(distributed_test, "init_multigpu_helper", lambda n, _: [[i] for i in range(n)])
        )
        for name in ("set_device", "synchronize"):
            stack.enter_context(mock.patch.object(torch.cuda, name))
        stack.enter_context(_HostMemory())
        yield


def run(here: Here, name: str, directory: str, *, for_gpus: bool) -> str:
    """ "ok", "skipped: …", or "unknown" to this torch; raises what the case raises. ``directory`` is one for all ranks,
    and this case alone.
    """
    if not hasattr(Case, name):
        return "unknown"
    case = Case(name)
    case.rank, case.here = here.rank, here
    common_utils.set_rng_seed()
    level = dist.get_debug_level()
    try:
        with (
            mock.patch.dict(os.environ, {"TEMP_DIR": directory}),
            contextlib.redirect_stdout(sys.stderr),  # ranks.py wants nothing on stdout
            _without_gpus() if for_gpus else contextlib.nullcontext(),
        ):
            inspect.unwrap(getattr(Case, name))(case)
    except unittest.SkipTest as skipped:
        return f"skipped: {skipped}"
    except SystemExit as ended:
        return f"skipped: status {ended.code}"
    finally:
        dist.set_debug_level(level)  # some cases raise it
    return "ok"
