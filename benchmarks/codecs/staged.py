# SPDX-License-Identifier: MIT
"""The compressed allreduce as Python calls it, stage by stage, over the ``bagua_net`` backend: a comparison for the
library's, which pipelines the stages. Groups of other backends compress this way."""

from __future__ import annotations

import bagua_net
from bagua_net._bench.transports.base import Bound, Job, Kind, Place, Unavailable
from bagua_net._bench.transports.torch_distributed import TorchTransport, import_torch
from bagua_net._bench.workload.config import Config
from bagua_net._bench.workload.elements import TYPES, tolerance

_BITS = 8


class _StagedTransport(TorchTransport):
    """Averages: encode, all-to-all, decode and add, encode, all-gather, decode."""

    def __init__(self, config: Config, place: Place, *, eager: bool) -> None:
        super().__init__("bagua_net", config, place)
        self._config = config
        self._eager = eager

    def bind(self, job: Job) -> Bound:
        from bagua_net.algorithms._codec import Codec, EagerCodec
        from bagua_net.algorithms._compressed import over_group

        codec = (EagerCodec if self._eager else Codec)(bits=_BITS, block=self._config.block)
        staged, elements = over_group(self._dist.group.WORLD, codec), self.tensor(job, job.receive)

        def call() -> None:
            staged.average(elements, None)

        return Bound(call, tolerance=tolerance(TYPES[job.dtype], job.redop, self._nranks, 2**_BITS - 1))


def _describe(config: Config) -> str:
    if (config.op, config.dtype, config.redop) != ("allreduce", "float32", "avg"):
        raise Unavailable("only an average of float32 is compressed stage by stage")
    return f"BaguaNet {bagua_net.__version__} as a backend of torch {import_torch().__version__}, in stages"


def _staged(name: str, *, eager: bool) -> Kind:
    def opened(config: Config, place: Place) -> TorchTransport:
        from bagua_net.torch import register  # which imports torch

        register()
        return _StagedTransport(config, place, eager=eager)

    return Kind(name, _describe, opened, lambda config: {}, on_request=True)


#: With the library's codec, and with a codec of torch's operations.
KINDS = {kind.name: kind for kind in (_staged("staged+u8", eager=False), _staged("staged+eager+u8", eager=True))}
