# SPDX-License-Identifier: MIT
"""Bagua's modules and names, release 0.9.2: where each is kept, or what to use in its place."""

from __future__ import annotations

_HERE = "bagua_net.compat"
_COMMUNICATION = (
    "BaguaProcessGroup",
    "ReduceOp",
    "allgather",
    "allgather_inplace",
    "allreduce",
    "allreduce_coalesced_inplace",
    "allreduce_inplace",
    "alltoall",
    "alltoall_inplace",
    "alltoall_v",
    "alltoall_v_inplace",
    "barrier",
    "broadcast",
    "broadcast_coalesced",
    "broadcast_object",
    "from_torch_group",
    "gather",
    "init_process_group",
    "is_initialized",
    "new_group",
    "recv",
    "reduce",
    "reduce_inplace",
    "reduce_scatter",
    "reduce_scatter_inplace",
    "scatter",
    "send",
    "_get_default_group",
)
_ENVIRONMENT = (
    "get_default_bucket_size",
    "get_local_rank",
    "get_local_size",
    "get_master_addr",
    "get_node_rank",
    "get_rank",
    "get_world_size",
)
_ALGORITHMS = {
    "gradient_allreduce": ("GradientAllReduceAlgorithm",),
    "bytegrad": ("ByteGradAlgorithm",),
    "decentralized": ("DecentralizedAlgorithm", "LowPrecisionDecentralizedAlgorithm"),
    "q_adam": ("QAdamAlgorithm", "QAdamOptimizer"),
    "async_model_average": ("AsyncModelAverageAlgorithm",),
}
_SAMPLERS = {
    name: f"bagua_net.data:{name}"
    for name in ("LoadBalancingDistributedSampler", "LoadBalancingDistributedBatchSampler")
}
_CACHES = {name: f"{_HERE}._contrib:{name}" for name in ("CacheLoader", "CachedDataset")}
_FUSED = {"fuse_optimizer": f"{_HERE}._contrib:fuse_optimizer"}

Names = dict[str, str]


def _all(module: str, names: tuple[str, ...]) -> Names:
    return {name: f"{_HERE}.{module}:{name}" for name in names}


#: Each module's names, and where they are: "module:name". A module's submodules are among its names as well.
KEPT: dict[str, Names] = {
    "bagua": {"__version__": f"{_HERE}._environment:VERSION"},
    "bagua.version": {"__version__": f"{_HERE}._environment:VERSION"},
    "bagua.torch_api": _all("_communication", _COMMUNICATION) | _all("_environment", _ENVIRONMENT),
    "bagua.torch_api.communication": _all("_communication", _COMMUNICATION),
    "bagua.torch_api.env": _all("_environment", _ENVIRONMENT),
    "bagua.torch_api.algorithms": {"Algorithm": f"{_HERE}._algorithms:Algorithm"},
    **{f"bagua.torch_api.algorithms.{module}": _all("_algorithms", names) for module, names in _ALGORITHMS.items()},
    "bagua.torch_api.algorithms.base": {"Algorithm": f"{_HERE}._algorithms:Algorithm"},
    "bagua.torch_api.data_parallel": {"DistributedDataParallel": f"{_HERE}._module:distributed_data_parallel"},
    "bagua.torch_api.data_parallel.distributed": {
        "DistributedDataParallel": f"{_HERE}._module:distributed_data_parallel"
    },
    "bagua.torch_api.distributed": {},
    "bagua.torch_api.contrib": _SAMPLERS | _CACHES | _FUSED,
    "bagua.torch_api.contrib.cache_loader": _CACHES,
    "bagua.torch_api.contrib.cached_dataset": _CACHES,
    "bagua.torch_api.contrib.fuse": _FUSED,
    "bagua.torch_api.contrib.fuse.optimizer": _FUSED,
    "bagua.torch_api.contrib.load_balancing_data_loader": _SAMPLERS,
    "bagua.torch_api.contrib.sync_batchnorm": {"SyncBatchNorm": "torch.nn:SyncBatchNorm"},
}

_AUTO = 'the algorithm "auto" of bagua_net.algorithms chooses by what it measures'
_OWN = "write a communication hook for DistributedDataParallel (register_comm_hook)"
_CHECKPOINT = "torch.save on rank 0, with bagua_net.algorithms.GatheredState for what the algorithm keeps"
_EXPERTS = "there is no mixture of experts here; DeepSpeed and torchtitan have one"
_TENSORS = "tensors need no registration; pass them as they are"

#: What to use in place of a name, or of all names below it.
GONE: Names = {
    "bagua.bagua_define": _AUTO,
    "bagua.distributed": "torchrun starts jobs: torchrun --nproc-per-node 8 -m bagua_net.compat train.py",
    "bagua.script": "torchrun starts jobs, on each host: torchrun --nproc-per-node 8 -m bagua_net.compat train.py",
    "bagua.service": _AUTO,
    "bagua.torch_api.BaguaModule": "torch.nn.Module has with_bagua by bagua_net.compat.install()",
    "bagua.torch_api.BaguaTensor": _TENSORS,
    "bagua.torch_api.algorithms.AlgorithmImpl": _OWN,
    "bagua.torch_api.algorithms.GlobalAlgorithmRegistry": "Algorithm.init(name); docs/algorithms.md has the names",
    "bagua.torch_api.algorithms.base.AlgorithmImpl": _OWN,
    "bagua.torch_api.bucket": "DistributedDataParallel makes the buckets: bucket_cap_mb",
    "bagua.torch_api.checkpoint": _CHECKPOINT,
    "bagua.torch_api.communication.gather_inplace": "gather",
    "bagua.torch_api.communication.get_backend": "torch.distributed.get_backend()",
    "bagua.torch_api.communication.get_communicator": "BaguaProcessGroup.get_global_communicator()",
    "bagua.torch_api.communication.get_hyperparameters_service_client": _AUTO,
    "bagua.torch_api.communication.scatter_inplace": "scatter",
    "bagua.torch_api.communication.start_autotune_server": _AUTO,
    "bagua.torch_api.contrib.utils": "CachedDataset keeps its samples in files, without Redis",
    "bagua.torch_api.data_parallel.bagua_distributed": "nn.Module.with_bagua, or bagua_net.algorithms.attach",
    "bagua.torch_api.data_parallel.functional": "torch.distributed.nn.functional has collectives with gradients",
    "bagua.torch_api.distributed.BaguaModule": "torch.nn.Module has with_bagua by bagua_net.compat.install()",
    "bagua.torch_api.gather_inplace": "gather",
    "bagua.torch_api.get_backend": "torch.distributed.get_backend()",
    "bagua.torch_api.model_parallel": _EXPERTS,
    "bagua.torch_api.moe": _EXPERTS,
    "bagua.torch_api.scatter_inplace": "scatter",
    "bagua.torch_api.tensor": _TENSORS,
    "bagua.torch_api.utils": "torch._utils._flatten_dense_tensors and _unflatten_dense_tensors flatten tensors",
    "bagua_core": "the library is bagua_net's own",
}


def instead_of(name: str) -> str:
    """One line about a dotted name that is not kept; empty if Bagua has none such either."""
    for each, use in GONE.items():
        if name == each or name.startswith(f"{each}."):
            return f"bagua_net.compat: {name} is not kept; {use}"
    return ""
