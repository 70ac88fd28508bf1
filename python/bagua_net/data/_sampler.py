# SPDX-License-Identifier: MIT
"""A distributed sampler whose ranks get samples of like cost at the same step."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from ._costs import Complexity, costs_of
from ._progress import Progress, checked, compare, next_epoch, numbers
from ._schedule import schedule

_DIGEST_BYTES = 16


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """The number of ranks and this one's; None: torch.distributed's."""
    if num_replicas is None or rank is None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "how many ranks there are, and which this is, is not known before init_process_group: call it first, "
                "or give num_replicas and rank"
            )
        num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        rank = dist.get_rank() if rank is None else rank
    if not 0 <= rank < num_replicas:
        raise ValueError(f"rank={rank} is not one of num_replicas={num_replicas}: numbers begin with 0")
    return num_replicas, rank


class LoadBalancingDistributedSampler(DistributedSampler):  # type: ignore[misc]
    """Each step of the ranks has samples of like cost, so that no rank waits for one with a longer sample.

    The samples of an epoch are those of torch's DistributedSampler with the same arguments: all of them; the first ones
    drawn come twice where the dataset does not divide by the ranks, or the last ones drawn are left out (drop_last).
    All ranks have the same number of steps. ``set_epoch`` changes the order, as with torch's.

    >>> lengths = [3, 40, 5, 38, 4, 41]
    >>> ranks = [
    ...     LoadBalancingDistributedSampler(lengths, lengths, num_replicas=2, rank=rank, shuffle=False)
    ...     for rank in range(2)
    ... ]
    >>> [[lengths[index] for index in sampler] for sampler in ranks]
    [[3, 38, 40], [4, 5, 41]]

    It is a DistributedSampler, so Lightning keeps it as it is, and ``Trainer(use_distributed_sampler=…)`` has no effect
    on it. torchdata's StatefulDataLoader stores and restores its position.

    Args:
        dataset: anything with a length; it is read only where ``complexity_fn`` is a function.
        complexity_fn: a function from a sample to its cost, or the costs: a sequence, tensor or array of one number for
            each sample. A function makes every rank load the whole dataset once. The costs are equal on all ranks: if
            they were drawn, as by random crops, ranks would take some samples twice and others never.
        num_replicas, rank: the ranks and this one's number; by default torch.distributed's.
        shuffle: draws the order of the steps, and of samples of one cost, from ``seed`` and the epoch. Otherwise the
            steps go from the cheapest samples to the costliest.
        seed: the same on all ranks.
        drop_last: leaves out what does not divide by the ranks.
        random_level: from 0 to 1: with ``shuffle``, which samples meet at a step changes from epoch to epoch, at the
            price of their costs' likeness. At 1 a sample may move by the whole range of costs.

    Raises:
        ValueError: an argument is out of range, or torch.distributed is needed and not initialized.
        TypeError: a cost is not a number.
    """

    def __init__(
        self,
        dataset: Any,
        complexity_fn: Complexity,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0,
    ) -> None:
        num_replicas, rank = _place(num_replicas, rank)
        if not 0 <= random_level <= 1:
            raise ValueError(f"random_level is from 0 to 1, not {random_level}")
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.random_level = random_level
        self.costs = costs_of(dataset, complexity_fn)
        costs = array("d", self.costs.tolist()).tobytes()
        self._digest = hashlib.blake2b(costs, digest_size=_DIGEST_BYTES).hexdigest()
        self._progress: Progress[int] = Progress()

    def schedule(self) -> torch.Tensor:
        """The samples of all ranks in this epoch: indices, of shape (len(self), num_replicas). A row is a step."""
        return schedule(
            self.costs,
            self.num_replicas,
            seed=self.seed + self.epoch if self.shuffle else None,
            drop_last=self.drop_last,
            random_level=self.random_level,
        )

    def __iter__(self) -> Iterator[int]:
        return self._progress.begin(self.epoch, self.schedule()[:, self.rank].tolist())

    # ---- checkpoints ----

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on within the epoch; the same on all ranks after the same step.

        Args:
            position: how many samples of this epoch a rank has trained on; by default how many were handed out. A
                torch DataLoader takes indices ahead, with workers several batches. With it, give the steps of this
                epoch times the batch size: where the last batch is shorter, that is more than the epoch has, and
                counts as its end. StatefulDataLoader needs no argument.

        Raises:
            ValueError: the position is negative.
        """
        if position is None:
            position = self._progress.position(self.epoch)
        position = checked(min(position, len(self)), len(self))
        return {"epoch": self.epoch, "position": position, "order": self.order()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The next iteration, unless :meth:`set_epoch` names another epoch before, goes on where the state was taken.
        After the end of an epoch a later one may have been named already: torchdata loads a state that late.

        Raises:
            ValueError: the state is not of a sampler with the same arguments, costs and number of ranks.
        """
        compare(state_dict.get("order"), self.order())
        if "batches" in state_dict:
            raise ValueError("the state is of a LoadBalancingDistributedBatchSampler, whose position counts batches")
        epoch, position = numbers(state_dict, "epoch", "position")
        self._progress.load(epoch, checked(position, len(self)))
        self.set_epoch(next_epoch(self.epoch, epoch, position == len(self)))

    def order(self) -> dict[str, Any]:
        """What the order of an epoch depends on, beside its number: a state holds where this is equal."""
        return {
            "num_replicas": self.num_replicas,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
            "random_level": self.random_level,
            "costs": self._digest,
        }
