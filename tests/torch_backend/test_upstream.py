# SPDX-License-Identifier: MIT
"""The cases by which torch tests its own backends, installed with it. These pass; upstream.py says how they run.

Left out: cases that need GPUs or torchvision, gloo by name (monitored_barrier, sparse reductions) or its own messages
(a barrier's timeout), or the profiler's events of a known backend.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ranks import Ranks

if TYPE_CHECKING:
    from rank import Here

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
    "test_isend",
    "test_isend_autograd_profiler",
    "test_irecv",
    "test_batch_isend_irecv_gloo",
    "test_batch_isend_irecv_gloo_tags",
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


def run_case(here: Here, name: str, directory: str) -> str:
    import upstream

    return upstream.run(here, name, directory)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("expecttest", "numpy")),
    reason="expecttest or numpy, which torch's cases import, is not installed",
)
@pytest.mark.parametrize("ranks", [_SIZE], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_case(ranks: Ranks, name: str, tmp_path: Path) -> None:
    (tmp_path / "test_dir").mkdir()
    assert ranks.run(run_case, name, str(tmp_path)) == ["ok"] * _SIZE
