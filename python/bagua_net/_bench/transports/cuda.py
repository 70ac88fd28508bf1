# SPDX-License-Identifier: MIT
"""Real NCCL on GPUs, through torch, with the plugin and without. NCCL chooses its network once per process, so the
two run in separate processes, which take turns.

Each rank of a machine gets its own host id, so that NCCL treats the ranks as being on different hosts and uses the
network between them, even for several ranks on one GPU.
"""

from __future__ import annotations

import os
from typing import Any

from ..._activation import environment
from ..workload.config import Config
from .base import Bound, Job, Kind, Place, Unavailable
from .torch_distributed import TorchTransport, import_torch


class CudaTransport(TorchTransport):
    """NCCL through torch. The job's buffers stay on the host; they are copied only for the checks."""

    def __init__(self, config: Config, place: Place) -> None:
        super().__init__("nccl", config, place)
        cuda = self._torch.cuda
        local = int(os.environ.get("LOCAL_RANK", place.rank))
        cuda.set_device(local % cuda.device_count())

    def bind(self, job: Job) -> Bound:
        host_receive = self.tensor(job, job.receive)
        receive: Any = host_receive.cuda()
        if job.send is job.receive:
            return Bound(
                self.operation(job, receive, receive),
                finish=self._torch.cuda.synchronize,
                push=lambda: receive.copy_(host_receive),
                pull=lambda: host_receive.copy_(receive),
            )
        host_send = self.tensor(job, job.send)
        send: Any = host_send.cuda()

        def push() -> None:
            send.copy_(host_send)
            receive.copy_(host_receive)

        return Bound(
            self.operation(job, send, receive),
            finish=self._torch.cuda.synchronize,
            push=push,
            pull=lambda: host_receive.copy_(receive),
        )

    def barrier(self) -> None:
        super().barrier()
        self._torch.cuda.synchronize()


def nccl_version() -> str:
    """The version of torch's NCCL, such as "2.30.7".

    Raises:
        Unavailable: torch, a CUDA device, or NCCL in torch is missing.
    """
    torch = import_torch()
    if not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} sees no CUDA device here")
    if not torch.distributed.is_nccl_available():
        raise Unavailable(f"torch {torch.__version__} was built without NCCL")
    return ".".join(map(str, torch.cuda.nccl.version()))


def _describe_with(config: Config) -> str:
    return f"NCCL {nccl_version()} on CUDA with the plugin"


def _describe_without(config: Config) -> str:
    return f"NCCL {nccl_version()} on CUDA with its own Socket network"


def _with_plugin(config: Config) -> dict[str, str]:
    return environment.env()


def _without_plugin(config: Config) -> dict[str, str]:
    return {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none"}


WITH_PLUGIN = Kind("nccl+bagua", _describe_with, CudaTransport, _with_plugin)
WITHOUT_PLUGIN = Kind("nccl", _describe_without, CudaTransport, _without_plugin)
