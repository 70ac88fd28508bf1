# SPDX-License-Identifier: MIT
"""The load-balancing samplers: which samples, in which rows, how many steps."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from bagua_net.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler

Cut = Callable[[list[int]], list[list[int]]]

COSTS = st.lists(st.one_of(st.integers(0, 9), st.floats(-1e6, 1e6)), max_size=60)
SETTINGS = st.fixed_dictionaries(
    {
        "shuffle": st.booleans(),
        "seed": st.integers(0, 1000),
        "drop_last": st.booleans(),
        "random_level": st.sampled_from([0, 0.3, 1]),
    }
)
REPLICAS = st.integers(1, 8)


def every(
    costs: Sequence[float], replicas: int, epoch: int = 0, **settings: Any
) -> list[LoadBalancingDistributedSampler]:
    """The samplers of all ranks."""
    made = [LoadBalancingDistributedSampler(costs, costs, replicas, rank, **settings) for rank in range(replicas)]
    for sampler in made:
        sampler.set_epoch(epoch)
    return made


def torchs(costs: Sequence[float], replicas: int, epoch: int, **settings: Any) -> list[list[int]]:
    settings.pop("random_level", None)
    made = [DistributedSampler(costs, replicas, rank, **settings) for rank in range(replicas)]
    for sampler in made:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in made]


def spread(costs: Sequence[float], ranks: list[list[int]]) -> float:
    """The sum over all steps of greatest minus least cost."""
    steps: list[list[float]] = [[costs[index] for index in step] for step in zip(*ranks, strict=True)]
    return sum(max(step) - min(step) for step in steps)


# ---- samples and steps ----


@given(COSTS, REPLICAS, st.integers(0, 5), SETTINGS)
def test_the_samples_are_those_of_torchs_sampler(
    costs: list[float], replicas: int, epoch: int, settings: dict[str, Any]
) -> None:
    """So all of the dataset; the first ones drawn twice, or the last ones left out, where it does not divide."""
    ours = [list(sampler) for sampler in every(costs, replicas, epoch, **settings)]
    theirs = torchs(costs, replicas, epoch, **settings)
    assert Counter(itertools.chain(*ours)) == Counter(itertools.chain(*theirs))
    assert [len(rank) for rank in ours] == [len(rank) for rank in theirs]


@given(COSTS, REPLICAS, st.booleans())
def test_all_ranks_cover_the_dataset_in_equally_many_steps(costs: list[float], replicas: int, drop_last: bool) -> None:
    samplers = every(costs, replicas, drop_last=drop_last)
    ranks = [list(sampler) for sampler in samplers]
    steps = len(costs) // replicas if drop_last else -(-len(costs) // replicas)
    assert {len(rank) for rank in ranks} == {len(sampler) for sampler in samplers} == {steps}
    taken = Counter(itertools.chain(*ranks))
    if drop_last:
        assert len(costs) - len(taken) < replicas
        assert set(taken.values()) <= {1}
    else:
        assert set(taken) == set(range(len(costs)))
        assert len(costs) == 0 or max(taken.values()) - min(taken.values()) <= 1


@given(COSTS, REPLICAS, st.integers(0, 5), SETTINGS)
def test_no_rows_of_the_same_samples_are_more_alike(
    costs: list[float], replicas: int, epoch: int, settings: dict[str, Any]
) -> None:
    """Neighbours in the order of costs meet: torch's sampler and any other has as large a spread, or a larger one."""
    settings["random_level"] = 0
    ours = [list(sampler) for sampler in every(costs, replicas, epoch, **settings)]
    neighbours = sorted(itertools.chain(*ours), key=costs.__getitem__)
    best = spread(costs, [neighbours[rank::replicas] for rank in range(replicas)])
    assert spread(costs, ours) == pytest.approx(best)
    assert best <= spread(costs, torchs(costs, replicas, epoch, **settings)) + 1e-6


def test_padding_has_the_cost_of_its_row() -> None:
    """The second sample of the last row is none of the cheapest, as it would be if the order began again."""
    costs = [*range(100), 10_000]
    for seed in range(20):
        ranks = [list(sampler) for sampler in every(costs, 2, seed=seed)]
        assert spread(costs, ranks) <= 10_000 - 99 + 51  # 10 000 beside 99, and rows of neighbours


def test_no_rank_has_the_costliest_sample_of_every_step() -> None:
    costs = list(range(4 * 4 * 10))
    for shuffle in (False, True):
        totals = {sum(costs[index] for index in sampler) for sampler in every(costs, 4, shuffle=shuffle)}
        assert max(totals) - min(totals) < 10 if shuffle else len(totals) == 1


@given(COSTS, REPLICAS, st.integers(0, 5), SETTINGS)
def test_an_epoch_is_the_same_each_time(
    costs: list[float], replicas: int, epoch: int, settings: dict[str, Any]
) -> None:
    first, second = every(costs, replicas, epoch, **settings)[-1], every(costs, replicas, epoch, **settings)[-1]
    assert list(first) == list(second) == list(first)


def test_epochs_differ_in_order() -> None:
    sampler = every(list(range(40)), 2)[0]
    epochs = set()
    for epoch in range(5):
        sampler.set_epoch(epoch)
        epochs.add(tuple(sampler))
    assert len(epochs) == 5


def test_samples_of_one_cost_meet_others_in_each_epoch() -> None:
    sampler = every([1.0] * 20, 2)[0]
    first, second = sampler.schedule(), (sampler.set_epoch(1), sampler.schedule())[1]
    assert {frozenset(row) for row in first.tolist()} != {frozenset(row) for row in second.tolist()}


def test_random_level_changes_which_samples_meet() -> None:
    def rows(level: float, epoch: int) -> set[frozenset[int]]:
        table = every(list(range(40)), 2, epoch, random_level=level)[0].schedule()
        return {frozenset(row) for row in table.tolist()}

    assert rows(0, 0) == rows(0, 1)
    assert rows(0.2, 0) != rows(0.2, 1)


def test_without_shuffle_the_steps_go_from_cheap_to_costly() -> None:
    table = every([5, 1, 4, 2, 3, 0], 2, shuffle=False)[0].schedule()
    assert [sorted(row) for row in table.tolist()] == [[1, 5], [3, 4], [0, 2]]


# ---- costs ----


@pytest.mark.parametrize("given_costs", [[3, 1, 2], (3, 1, 2), torch.tensor([3, 1, 2]), torch.tensor([3.0, 1, 2])])
def test_costs_may_be_given_and_the_dataset_is_not_read(given_costs: Any) -> None:
    class Unread:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> None:
            raise AssertionError("it was read")

    sampler = LoadBalancingDistributedSampler(Unread(), given_costs, 1, 0, shuffle=False)
    assert list(sampler) == [1, 2, 0]


def test_costs_may_be_an_array() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    assert list(LoadBalancingDistributedSampler(range(3), numpy.array([3, 1, 2]), 1, 0, shuffle=False)) == [1, 2, 0]


def test_costs_may_be_tensors_of_a_function() -> None:
    dataset = torch.utils.data.TensorDataset(torch.tensor([3, 1, 2]))
    assert list(LoadBalancingDistributedSampler(dataset, lambda sample: sample[0], 1, 0, shuffle=False)) == [1, 2, 0]


@pytest.mark.parametrize(
    ("costs", "error", "words"),
    [
        ([1, 2], ValueError, "one for each of 3 samples"),
        ([[1], [2], [3]], ValueError, "one for each of 3 samples"),
        ([1, float("nan"), 3], ValueError, "cost of sample 1 is nan"),
        ([1, 2, float("inf")], ValueError, "cost of sample 2 is inf"),
        (["a", "b", "c"], TypeError, "a number for each sample"),
        (None, TypeError, "a number for each sample"),
        (lambda sample: "long", TypeError, "returned 'long' for sample 0"),
    ],
)
def test_bad_costs_are_named(costs: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        LoadBalancingDistributedSampler(range(3), costs, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_replicas": 2, "rank": 2}, "rank=2 is not one of num_replicas=2"),
        ({"num_replicas": 2, "rank": -1}, "rank=-1"),
        ({"num_replicas": 0, "rank": 0}, "num_replicas=0"),
        ({"num_replicas": 2, "rank": 0, "random_level": 1.5}, "from 0 to 1, not 1.5"),
        ({}, "init_process_group"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LoadBalancingDistributedSampler(range(3), [1, 2, 3], **arguments)


# ---- batches ----


def up_to(limit: float, costs: Sequence[float]) -> Cut:
    """Batches of at most this cost together, so of different numbers on different ranks."""

    def cut(indices: list[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        total = 0.0
        for index in indices:
            if not batches or total + costs[index] > limit:
                batches.append([])
                total = 0.0
            batches[-1].append(index)
            total += costs[index]
        return batches

    return cut


def batches_of(
    costs: Sequence[float], replicas: int, cut: Cut, *, drop_last: bool = False, **settings: Any
) -> tuple[list[list[list[int]]], set[int]]:
    """Of each rank, and the lengths that they say."""
    made = [LoadBalancingDistributedBatchSampler(each, cut, drop_last) for each in every(costs, replicas, **settings)]
    return [list(sampler) for sampler in made], {len(sampler) for sampler in made}


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), REPLICAS, st.integers(0, 5), st.integers(50, 200))
def test_all_ranks_have_equally_many_batches(costs: list[float], replicas: int, epoch: int, limit: int) -> None:
    cut = up_to(limit, costs)
    own = [cut(list(sampler)) for sampler in every(costs, replicas, epoch)]
    longest, shortest = max(map(len, own)), min(map(len, own))
    padded, said = batches_of(costs, replicas, cut, epoch=epoch)
    assert {len(batches) for batches in padded} == said == {longest}
    assert all(batches[: len(mine)] == mine for batches, mine in zip(padded, own, strict=True))
    dropped, said = batches_of(costs, replicas, cut, epoch=epoch, drop_last=True)
    assert {len(batches) for batches in dropped} == said == {shortest}
    assert all(batches == mine[:shortest] for batches, mine in zip(dropped, own, strict=True))


def test_a_rank_with_few_batches_repeats_them_as_often_as_needed() -> None:
    """More than twice: one batch on one rank, five on the other."""

    def cut(indices: list[int]) -> list[list[int]]:
        return [[index] for index in indices] if 0 in indices else [indices]

    batches, lengths = batches_of([0] * 10, 2, cut, shuffle=False)
    assert lengths == {5}
    assert batches == [[[0], [3], [4], [7], [8]], [[1, 2, 5, 6, 9]] * 5]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_rank_without_batches_is_an_error_on_all(rank: int, drop_last: bool) -> None:
    sampler = every([0] * 10, 2, shuffle=False)[rank]
    batches = LoadBalancingDistributedBatchSampler(
        sampler, lambda indices: [indices] if 0 in indices else [], drop_last
    )
    with pytest.raises(ValueError, match="no batch for rank 1 and 1 for another"):
        iter(batches)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_empty_batch_is_an_error_on_all(rank: int) -> None:
    sampler = every([0] * 10, 2, shuffle=False)[rank]
    batches = LoadBalancingDistributedBatchSampler(
        sampler, lambda indices: [indices, []] if 0 in indices else [indices]
    )
    with pytest.raises(ValueError, match="empty batch"):
        len(batches)


def test_batches_that_depend_on_chance_are_an_error() -> None:
    draws = random.Random(0)
    sampler = every([0] * 100, 2)[0]

    def cut(indices: list[int]) -> list[list[int]]:
        return [[index] for index in indices if draws.random() < 0.5] or [indices]

    with pytest.raises(ValueError, match="other batches for the same indices"):
        iter(LoadBalancingDistributedBatchSampler(sampler, cut))


def test_a_function_that_changes_its_argument_does_no_harm() -> None:
    def cut(indices: list[int]) -> list[list[int]]:
        return [[indices.pop() for _ in range(min(2, len(indices)))] for _ in range(-(-len(indices) // 2))]

    batches, lengths = batches_of([0] * 10, 2, cut)
    assert lengths == {3}
    assert {index for rank in batches for batch in rank for index in batch} == set(range(10))


def test_an_empty_dataset_has_no_batches() -> None:
    assert batches_of([], 2, up_to(1, [])) == ([[], []], {0})


def test_the_batches_follow_the_samplers_epoch() -> None:
    """Lightning calls the sampler's set_epoch, not the batch sampler's."""
    costs = list(range(40))
    sampler = every(costs, 2)[0]
    batches = LoadBalancingDistributedBatchSampler(sampler, up_to(60, costs))
    first = list(batches)
    sampler.set_epoch(1)
    second = list(batches)
    batches.set_epoch(0)
    assert list(batches) == first != second


def test_another_sampler_is_refused() -> None:
    with pytest.raises(TypeError, match="not a DistributedSampler"):
        LoadBalancingDistributedBatchSampler(DistributedSampler(range(3), 1, 0), lambda indices: [indices])


# ---- checkpoints ----


@given(COSTS, REPLICAS, st.integers(0, 5), st.data())
def test_an_epoch_goes_on_where_it_was(costs: list[float], replicas: int, epoch: int, data: st.DataObject) -> None:
    whole = [list(sampler) for sampler in every(costs, replicas, epoch)]
    samplers = every(costs, replicas, epoch)
    stop = data.draw(st.integers(0, len(samplers[0])))
    heads, states = [], []
    for sampler in samplers:
        iterator = iter(sampler)
        heads.append([next(iterator) for _ in range(stop)])
        states.append(sampler.state_dict())
    assert all(state == states[0] for state in states)  # one rank's will do
    resumed = every(costs, replicas)
    for sampler in resumed:
        sampler.load_state_dict(states[0])
        assert sampler.state_dict() == states[0]
        sampler.set_epoch(epoch)  # as loops do
    assert [head + list(sampler) for head, sampler in zip(heads, resumed, strict=True)] == whole
    assert [list(sampler) for sampler in resumed] == whole  # the next time from the beginning


def test_another_epoch_begins_at_its_beginning() -> None:
    sampler, other = every(list(range(20)), 2)[0], every(list(range(20)), 2, 4)[0]
    iterator = iter(sampler)
    next(iterator)
    fresh = every(list(range(20)), 2)[0]
    fresh.load_state_dict(sampler.state_dict())
    fresh.set_epoch(4)
    assert fresh.state_dict()["position"] == 0
    assert list(fresh) == list(other)


def test_a_position_may_be_given() -> None:
    """A loader with workers has taken more indices than were trained on."""
    sampler = every(list(range(20)), 2)[0]
    whole = list(sampler)
    fresh = every(list(range(20)), 2)[0]
    fresh.load_state_dict(sampler.state_dict(position=3))
    assert list(fresh) == whole[3:]
    with pytest.raises(ValueError, match="position -1 is not in an epoch of 10"):
        sampler.state_dict(position=-1)


@pytest.mark.parametrize(
    ("costs", "replicas", "settings", "words"),
    [
        (list(range(20)), 4, {}, "num_replicas=2, and this one has num_replicas=4"),
        (list(range(20)), 2, {"seed": 1}, "seed=0"),
        (list(range(20)), 2, {"shuffle": False}, "shuffle=True"),
        (list(range(20)), 2, {"drop_last": True}, "drop_last=False"),
        (list(range(20)), 2, {"random_level": 0.5}, "random_level=0"),
        (list(range(1, 21)), 2, {}, "costs="),
        (list(range(19)), 2, {}, "costs="),
    ],
)
def test_a_state_of_another_sampler_is_refused(
    costs: list[float], replicas: int, settings: dict[str, Any], words: str
) -> None:
    state = every(list(range(20)), 2)[0].state_dict()
    with pytest.raises(ValueError, match=words):
        every(costs, replicas, **settings)[0].load_state_dict(state)


@pytest.mark.parametrize(
    "change", [{"epoch": None}, {"position": -1}, {"position": "3"}, {"position": 11}, {"order": 3}]
)
def test_a_bad_state_is_named(change: dict[str, Any]) -> None:
    sampler = every(list(range(20)), 2)[0]
    with pytest.raises(ValueError, match=r"state|position"):
        sampler.load_state_dict({**sampler.state_dict(), **change})


def test_batches_go_on_where_they_were() -> None:
    costs = list(range(40))
    cut = up_to(60, costs)

    def made() -> LoadBalancingDistributedBatchSampler:
        return LoadBalancingDistributedBatchSampler(every(costs, 2)[1], cut)

    batches = made()
    batches.set_epoch(3)
    whole = list(batches)
    iterator = iter(batches)
    head = [next(iterator) for _ in range(4)]
    resumed = made()
    resumed.load_state_dict(batches.state_dict())
    resumed.set_epoch(3)
    assert head + list(resumed) == whole
    given_position = made()
    given_position.load_state_dict(batches.state_dict(position=2))
    assert list(given_position) == whole[2:]


def test_a_state_of_batches_is_none_of_samples() -> None:
    """Its position would be read as so many samples."""
    sampler = every(list(range(20)), 2)[0]
    state = LoadBalancingDistributedBatchSampler(sampler, up_to(60, list(range(20)))).state_dict(position=2)
    with pytest.raises(ValueError, match="position counts batches"):
        sampler.load_state_dict(state)


def test_a_state_of_other_batches_is_refused() -> None:
    costs = list(range(40))
    state = LoadBalancingDistributedBatchSampler(every(costs, 2)[0], up_to(60, costs)).state_dict()
    with pytest.raises(ValueError, match="batches="):
        LoadBalancingDistributedBatchSampler(every(costs, 2)[0], up_to(200, costs)).load_state_dict(state)
