# SPDX-License-Identifier: MIT
"""The cases by which torch tests its own backends, installed with it. These pass; upstream.py says how they run.

Those for GPUs run in host memory. Left out are:

- test_*nccl*, test_*_cuda*, test_sparse_*, test_monitored_barrier_*, test_barrier_timeout_*, test_average_parameters,
  test_accumulate_gradients_*, test_batch_isend_irecv_mixed_backend_err: they want NCCL or gloo by name, or gloo's
  messages;
- test_*SyncBatchNorm*, test_*sync_bn*, test_ddp_inference, test_*mixed_precision*, test_*_with_amp_*,
  test_*_non_default_stream, test_ddp_apply_optim_in_backward*, test_ddp_device, test_ddp_logging_data_gpu,
  test_ddp_shared_grad_acc_unused_params, test_ddp_uneven_inputs*: they use what only GPUs have, or torchvision;
- test_ddp_profiling_*: they look for the profiler's events of a known backend;
- test_3_level_hierarchical_model_averager: it counts groups, and these ranks have one of gloo as well;
- test_ddp_hook_pickling_powerSGD: it fails whatever the backend is;
- test_ddp_has_finalized: its ranks wait for each other until the group's timeout;
- test_ddp_compile_static_graph: it compiles for long, and test_compile.py compiles DDP;
- test_ddp_grad_div_uneven_inputs: inside join(), DDP keeps only C++'s part of a work, and that has no future;
- test_ddp_hook_with_optimizer_parity_*, which are commented out there, and test_ddp_update_process_group_*, which are
  made where there are GPUs; those of DDP's buckets alone, which need no group.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ranks import Ranks
from tests.support.tiers import variants

if TYPE_CHECKING:
    from tests.support.rank import Here

#: The groups of the "group" cases are ranks 1 and 2.
_SIZE = 3

CASES = (
    # what a group is
    "test_get_rank",
    "test_get_backend",
    "test_Backend_enum_class",
    "test_destroy_group",
    "test_get_rank_size_group",
    "test_destroy_full_group",
    "test_get_rank_size_full_group",
    # from point to point
    "test_send_recv",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_send_recv_autograd_profiler",
    "test_send_recv_any_source_autograd_profiler",
    "test_send_recv_any_source_torch_profiler",
    "test_send_recv_with_tag_autograd_profiler",
    "test_send_recv_torch_profiler",
    "test_send_recv_with_tag_torch_profiler",
    "test_isend",
    "test_isend_autograd_profiler",
    "test_isend_torch_profiler",
    "test_irecv",
    "test_batch_isend_irecv_gloo",
    "test_batch_isend_irecv_gloo_tags",
    "test_batch_isend_irecv_op_list_err",
    # one for all, all for one
    "test_broadcast",
    "test_broadcast_group",
    "test_broadcast_full_group",
    "test_reduce_sum",
    "test_reduce_product",
    "test_reduce_min",
    "test_reduce_max",
    "test_reduce_group_sum",
    "test_reduce_group_product",
    "test_reduce_group_min",
    "test_reduce_group_max",
    "test_reduce_full_group_sum",
    "test_reduce_full_group_product",
    "test_reduce_full_group_min",
    "test_reduce_full_group_max",
    "test_reduce_sum_twice",
    "test_scatter_checks",
    "test_scatter",
    "test_scatter_complex",
    "test_scatter_group",
    "test_scatter_full_group",
    "test_gather_checks",
    "test_gather",
    "test_gather_group",
    "test_gather_full_group",
    # all for all
    "test_all_reduce_sum",
    "test_all_reduce_sum_async",
    "test_get_future",
    "test_all_reduce_sum_complex",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_product",
    "test_all_reduce_min",
    "test_all_reduce_max",
    "test_all_reduce_group_sum",
    "test_all_reduce_group_product",
    "test_all_reduce_group_min",
    "test_all_reduce_group_max",
    "test_all_reduce_full_group_sum",
    "test_all_reduce_full_group_product",
    "test_all_reduce_full_group_min",
    "test_all_reduce_full_group_max",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_coalesced_product",
    "test_all_reduce_coalesced_min",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_coalesced_max_complex_unsupported",
    "test_all_reduce_coalesced_group_sum",
    "test_all_reduce_coalesced_group_product",
    "test_all_reduce_coalesced_group_min",
    "test_all_reduce_coalesced_group_max",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_coalesced_full_group_product",
    "test_all_reduce_coalesced_full_group_min",
    "test_all_reduce_coalesced_full_group_max",
    "test_all_gather",
    "test_all_gather_complex",
    "test_all_gather_group",
    "test_all_gather_full_group",
    "test_all_gather_coalesced_simple",
    "test_all_gather_coalesced_complex",
    "test_all_gather_coalesced_group",
    "test_all_gather_coalesced_full_group",
    "test_all_gather_coalesced_with_empty",
    # each for each
    "test_all_to_all",
    "test_all_to_all_complex",
    "test_all_to_all_group",
    "test_all_to_all_full_group",
    "test_all_to_all_single_equal_split",
    "test_all_to_all_single_equal_split_complex",
    "test_all_to_all_single_equal_split_group",
    "test_all_to_all_single_equal_split_full_group",
    "test_all_to_all_single_unequal_split",
    "test_all_to_all_single_unequal_split_complex",
    "test_all_to_all_single_unequal_split_group",
    "test_all_to_all_single_unequal_split_full_group",
    "test_barrier",
    "test_barrier_group",
    "test_barrier_full_group",
    # objects
    "test_all_gather_object_default_pg",
    "test_all_gather_object_subgroup",
    "test_gather_object",
    "test_gather_object_subgroup",
    "test_scatter_object_list",
    "test_broadcast_object_list",
    # DistributedDataParallel
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_requires_grad",
    "test_ddp_create_graph",
    "test_ddp_logging_data_cpu",
    "test_dump_DDP_relevant_env_vars",
    "test_static_graph_api_cpu",
    "test_grads_same_across_ranks_with_no_sync",
)

#: One for each operation: those that are run before a change is merged.
IN_GATE = (
    "test_send_recv",
    "test_isend",
    "test_irecv",
    "test_broadcast",
    "test_reduce_sum",
    "test_gather",
    "test_scatter",
    "test_all_reduce_sum",
    "test_all_reduce_group_sum",
    "test_all_reduce_coalesced_sum",
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_to_all",
    "test_all_to_all_single_unequal_split",
    "test_barrier",
    "test_all_gather_object_default_pg",
    "test_gather_object",
    "test_scatter_object_list",
    "test_broadcast_object_list",
    "test_DistributedDataParallelCPU",
)

#: For GPUs, whose part is played by host memory.
GPU_CASES = (
    "test_1_level_hierarchical_model_averager_equivalent_to_periodic_model_averager",
    "test_DistributedDataParallel",
    "test_DistributedSampler_padding",
    "test_batch_isend_irecv_op_err",
    "test_coalescing_manager",
    "test_coalescing_manager_async",
    "test_compute_bucket_assignment_by_size_sparse_error_with_logger",
    "test_compute_bucket_assignment_by_size_sparse_error_without_logger",
    "test_ddp_broadcast_buffer",
    "test_ddp_broadcast_buffer_via_hook",
    "test_ddp_broadcast_buffers_deprecation_warning",
    "test_ddp_buffer_hook_allreduce",
    "test_ddp_buffer_hook_allreduce_return_future",
    "test_ddp_build_debug_param_to_name_mapping",
    "test_ddp_build_debug_param_to_name_mapping_requires_grad",
    "test_ddp_comm_hook_logging",
    "test_ddp_control_flow_different_across_ranks",
    "test_ddp_control_flow_same_across_ranks",
    "test_ddp_device_mesh_initialization",
    "test_ddp_forward_backward_hook",
    "test_ddp_hook_parity_allreduce",
    "test_ddp_hook_parity_allreduce_process_group",
    "test_ddp_hook_parity_post_localSGD",
    "test_ddp_hook_parity_powerSGD",
    "test_ddp_ignore_params_arg",
    "test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
    "test_ddp_join_model_equivalence",
    "test_ddp_join_respects_forward_sync_buffers_false",
    "test_ddp_model_diff_num_params_across_ranks",
    "test_ddp_model_diff_shape_across_ranks",
    "test_ddp_multiple_nested_unused_params_err_ignore_params",
    "test_ddp_multiple_nested_unused_params_error",
    "test_ddp_namedtuple",
    "test_ddp_new_tensor_in_fwd",
    "test_ddp_new_tensor_in_fwd_static_graph",
    "test_ddp_python_error_logged",
    "test_ddp_remove_autograd_hooks",
    "test_ddp_returns_tensor_with_no_grad",
    "test_ddp_sink_noclone",
    "test_ddp_static_graph_nested_types",
    "test_ddp_sync_module_states",
    "test_ddp_uneven_input_exception",
    "test_ddp_uneven_input_join_disable",
    "test_ddp_unused_params_rebuild_buckets_exception",
    "test_ddp_zero_output_features",
    "test_detect_ddp_is_actually_static",
    "test_different_graph_across_ranks",
    "test_get_data_parallel_params",
    "test_invalid_static_graph",
    "test_output_unused_in_loss_dict_module",
    "test_output_unused_in_loss_tuple_module",
    "test_periodic_model_averager",
    "test_periodic_model_averager_param_group",
    "test_post_localSGD_optimizer_parity",
    "test_post_localSGD_optimizer_parity_grad_is_view",
    "test_post_localSGD_optimizer_step_reload",
    "test_skip_all_reduce_unused_parameters",
    "test_stateless_api_with_ddp",
    "test_static_graph_multi_forward",
    "test_undefined_grad_parity_unused_parameters",
    "test_verify_model_across_rank_with_logger",
    "test_verify_model_across_rank_without_logger",
)

#: The same among four ranks, or an even number of them.
GPU_CASES_OF_FOUR = (
    "test_new_subgroups",
    "test_new_subgroups_by_enumeration",
    "test_new_subgroups_by_enumeration_input_rank_exceeds_world_size",
    "test_new_subgroups_by_enumeration_negative_input_rank",
    "test_new_subgroups_group_size_exceeds_world_size",
    "test_new_subgroups_overlap_not_allowed",
    "test_new_subgroups_with_group_param",
    "test_new_subgroups_world_size_not_divisible_by_group_size",
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd",
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view",
)


def run_case(here: Here, name: str, directory: str, for_gpus: bool) -> str:
    from tests.torch_backend import upstream

    return upstream.run(here, name, directory, for_gpus=for_gpus)


_NEEDED = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("expecttest", "numpy")),
    reason="expecttest or numpy, which torch's cases import, is not installed",
)


def _passes(ranks: Ranks, name: str, directory: Path, *, for_gpus: bool = False) -> None:
    (directory / "test_dir").mkdir()
    told = ranks.run(run_case, name, str(directory), for_gpus)
    if told == ["unknown"] * ranks.size:
        pytest.skip(f"this torch has no case {name}")
    assert told == ["ok"] * ranks.size


@_NEEDED
@pytest.mark.parametrize("ranks", [_SIZE], indirect=True)
@pytest.mark.parametrize("name", variants(gate=IN_GATE, nightly=[name for name in CASES if name not in IN_GATE]))
def test_case(ranks: Ranks, name: str, tmp_path: Path) -> None:
    _passes(ranks, name, tmp_path)


@_NEEDED
@pytest.mark.parametrize("ranks", [_SIZE], indirect=True)
@pytest.mark.parametrize("name", variants(gate=GPU_CASES[1:2], nightly=[*GPU_CASES[:1], *GPU_CASES[2:]]))
def test_case_for_gpus(ranks: Ranks, name: str, tmp_path: Path) -> None:
    _passes(ranks, name, tmp_path, for_gpus=True)


@_NEEDED
@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("name", GPU_CASES_OF_FOUR)
def test_case_for_four_gpus(ranks: Ranks, name: str, tmp_path: Path) -> None:
    _passes(ranks, name, tmp_path, for_gpus=True)
