# SPDX-License-Identifier: MIT
"""The load-balancing samplers in torch's and torchdata's loaders, in a process group, and in Lightning."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from bagua_net.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler
from tests.data.balanced import COSTS, EPOCHS, at_most_40, threes
from tests.support import programs
from tests.support.ranks import Ranks
from tests.support.tiers import variants

if TYPE_CHECKING:
    from tests.support.rank import Here

_SECONDS = 240


def sampler_of(rank: int = 0) -> LoadBalancingDistributedSampler:
    return LoadBalancingDistributedSampler(COSTS, COSTS, 2, rank)


Made = tuple[LoadBalancingDistributedSampler, Any]


def by_sampler(loader: Callable[..., Any], workers: int) -> Made:
    sampler = sampler_of()
    return sampler, loader(range(len(COSTS)), batch_size=2, sampler=sampler, num_workers=workers)


def by_batch_sampler(loader: Callable[..., Any], workers: int) -> Made:
    sampler = sampler_of()
    batches = LoadBalancingDistributedBatchSampler(sampler, threes)
    return sampler, loader(range(len(COSTS)), batch_sampler=batches, num_workers=workers)


WAYS = pytest.mark.parametrize("made", [by_sampler, by_batch_sampler])
WORKERS = pytest.mark.parametrize("workers", [0, 2], ids=["no-workers", "2-workers"])


def batches_in(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@WAYS
@WORKERS
def test_a_loader_hands_out_the_samplers_order(made: Callable[..., Made], workers: int) -> None:
    sampler, loader = made(DataLoader, workers)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert list(itertools.chain(*batches_in(loader))) == list(sampler)


@WORKERS
def test_a_loader_that_reads_ahead_goes_on_from_the_steps_done(workers: int) -> None:
    sampler, loader = by_sampler(DataLoader, workers)
    whole = batches_in(loader)
    iterator = iter(loader)
    head = [next(iterator).tolist() for _ in range(3)]
    state = sampler.state_dict(position=3 * 2)
    del iterator
    fresh, loader = by_sampler(DataLoader, workers)
    fresh.load_state_dict(state)
    assert head + batches_in(loader) == whole


def test_the_steps_of_a_whole_epoch_are_its_end_where_its_last_batch_is_shorter() -> None:
    sampler, loader = by_sampler(DataLoader, 0)
    whole = batches_in(loader)
    assert [len(batch) for batch in whole] == [2] * 11 + [1]
    fresh, loader = by_sampler(DataLoader, 0)
    fresh.load_state_dict(sampler.state_dict(position=len(whole) * 2))
    assert batches_in(loader) == []
    assert batches_in(loader) == whole  # the next epoch, from its beginning


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torchdata, for each loader
@WAYS
@WORKERS
def test_torchdatas_loader_stores_the_position(made: Callable[..., Made], workers: int) -> None:
    module = "torchdata.stateful_dataloader"
    if importlib.util.find_spec("torchdata") is None:
        pytest.skip("torchdata is not installed")
    loader_type = importlib.import_module(module).StatefulDataLoader
    sampler, loader = made(loader_type, workers)
    sampler.set_epoch(3)
    whole = batches_in(loader)
    for stop in (0, 1, len(whole) - 1, len(whole)):
        sampler, loader = made(loader_type, workers)
        sampler.set_epoch(3)
        iterator = iter(loader)
        head = [next(iterator).tolist() for _ in range(stop)]
        state = loader.state_dict()
        del iterator
        sampler, resumed = made(loader_type, workers)
        resumed.load_state_dict(state)
        assert head + batches_in(resumed) == whole
        assert batches_in(resumed) == whole  # and the next one from its beginning
    iterator = iter(loader)
    assert [batch.tolist() for batch in iterator] == whole
    sampler, resumed = made(loader_type, workers)
    resumed.load_state_dict(loader.state_dict())  # of an epoch that is over
    assert batches_in(resumed) == whole
    later, other = made(loader_type, workers)
    later.set_epoch(4)
    sampler, resumed = made(loader_type, workers)
    resumed.load_state_dict(loader.state_dict())
    sampler.set_epoch(4)  # by a loop, before the loader reads the state
    assert batches_in(resumed) == batches_in(other) != whole


# ---- a process group ----


def samples_of_rank(_: Here) -> tuple[int, list[int]]:
    sampler = LoadBalancingDistributedSampler(COSTS, COSTS)
    return sampler.num_replicas, list(sampler)


def test_the_process_group_tells_the_rank(ranks: Ranks) -> None:
    assert ranks.run(samples_of_rank) == [(2, list(sampler_of(rank))) for rank in range(2)]


# ---- Lightning ----


def seen_in_lightning(way: str, directory: Path) -> list[list[list[int]]]:
    """The samples of each rank in each epoch."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    command = [sys.executable, "-m", "tests.data.lightning_job", way, str(directory)]
    environment = os.environ | {"PYTHONPATH": programs.search_path()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.nightly
@pytest.mark.parametrize("way", variants("sampler", nightly=["batch_sampler"]))
def test_lightning_keeps_the_sampler(way: str, tmp_path: Path) -> None:
    """It replaces other samplers by its own, and tells the epoch."""
    for rank, seen in enumerate(seen_in_lightning(way, tmp_path)):
        sampler, expected = sampler_of(rank), []
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            expected.append(list(sampler))
        assert seen == expected


@pytest.mark.nightly
def test_lightning_reloads_a_loader_whose_length_changes(tmp_path: Path) -> None:
    """Of the same loader it would leave out what an epoch has more than the first one."""
    for rank, seen in enumerate(seen_in_lightning("reloaded", tmp_path)):
        batches = LoadBalancingDistributedBatchSampler(sampler_of(rank), at_most_40)
        expected = []
        for epoch in range(EPOCHS):
            batches.set_epoch(epoch)
            expected.append(list(batches))
        assert max(map(len, expected)) > len(expected[0]), "no epoch is longer than the first"
        assert seen == [list(itertools.chain(*each)) for each in expected]
