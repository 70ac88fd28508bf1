# SPDX-License-Identifier: MIT
"""torch.distributed as a network: the common part of gloo and real NCCL. torch is imported on first use."""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Callable
from typing import Any

from ..workload.config import Config
from ..workload.elements import TYPES
from .base import Bound, Call, Job, NetworkFailed, Place, Unavailable

_REDOPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}


def import_torch() -> Any:
    """torch with torch.distributed.

    Raises:
        Unavailable: it is not installed, does not load, or has no torch.distributed.
    """
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("torch is not installed here; pip install torch")
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        raise Unavailable(f"torch does not load here: {error}") from error
    if not dist.is_available():
        raise Unavailable(f"torch {torch.__version__} was built without torch.distributed")
    return torch


class TorchTransport:
    """One rank of the default process group."""

    def __init__(self, backend: str, config: Config, place: Place) -> None:
        self._torch = import_torch()
        self._dist = self._torch.distributed
        self._backend = backend
        self._rank = place.rank
        self._nranks = config.nranks
        self._timeout = datetime.timedelta(seconds=config.timeout)
        self._store: Any = None
        self.row = b""
        self.evidence: list[str] = []
        if place.rank == 0:
            self._store = self._dist.TCPStore(
                place.host, 0, config.nranks, is_master=True, timeout=self._timeout, wait_for_workers=False
            )
            self.row = f"{place.host} {self._store.port}".encode()

    def connect(self, rows: list[bytes]) -> None:
        try:
            self._connect(rows)
        except RuntimeError as error:
            raise NetworkFailed(f"{self._backend}: {error}; --transport bagua measures without it") from error

    def _connect(self, rows: list[bytes]) -> None:
        if self._store is None:
            host, port = rows[0].decode().split()
            self._store = self._dist.TCPStore(host, int(port), self._nranks, is_master=False, timeout=self._timeout)
        self._dist.init_process_group(
            self._backend,
            store=self._store,
            rank=self._rank,
            world_size=self._nranks,
            timeout=self._timeout,
        )

    def tensor(self, job: Job, memory: memoryview) -> Any:
        """A host tensor in that memory."""
        return self._torch.frombuffer(memory, dtype=getattr(self._torch, TYPES[job.dtype].name))

    def bind(self, job: Job) -> Bound:
        receive = self.tensor(job, job.receive)
        send = receive if job.send is job.receive else self.tensor(job, job.send)
        return Bound(self.operation(job, send, receive))

    def operation(self, job: Job, send: Any, receive: Any) -> Call:
        """The call on these tensors."""
        dist = self._dist
        redop = getattr(dist.ReduceOp, _REDOPS[job.redop])
        calls: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: dist.all_reduce(receive, redop),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(receive, send, redop),
            "all_gather": lambda: dist.all_gather_into_tensor(receive, send),
            "broadcast": lambda: dist.broadcast(receive, 0),
            "all_to_all": lambda: dist.all_to_all_single(receive, send),
            "sendrecv": lambda: self._sendrecv(send, receive),
        }
        return calls[job.op]

    def _sendrecv(self, send: Any, receive: Any) -> None:
        dist = self._dist
        following, preceding = (self._rank + 1) % self._nranks, (self._rank - 1) % self._nranks
        pair = [dist.P2POp(dist.isend, send, following), dist.P2POp(dist.irecv, receive, preceding)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()
