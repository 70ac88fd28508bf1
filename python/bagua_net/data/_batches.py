# SPDX-License-Identifier: MIT
"""Batches of a size that the caller chooses, equally many on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Sampler

from ._progress import Progress, checked, compare, next_epoch, numbers
from ._sampler import LoadBalancingDistributedSampler

BatchFunction = Callable[[list[int]], Iterable[Sequence[int]]]


class LoadBalancingDistributedBatchSampler(Sampler):  # type: ignore[misc]
    """Cuts each rank's samples into batches by a function, for example of at most so many tokens each.

    The function may return different numbers of batches for different ranks. Every rank computes the batches of all, so
    that all take the same number of steps: the largest, where ranks with fewer begin again with their first batches, or
    with ``drop_last`` the smallest.

    >>> lengths = [3, 40, 5, 38, 4, 41, 6, 39]
    >>> sampler = LoadBalancingDistributedSampler(lengths, lengths, num_replicas=2, rank=0, shuffle=False)
    >>> def at_most_50(indices):
    ...     batches, total = [], 0
    ...     for index in indices:
    ...         if not batches or total + lengths[index] > 50:
    ...             batches, total = [*batches, []], 0
    ...         batches[-1].append(index)
    ...         total += lengths[index]
    ...     return batches
    >>> [[lengths[index] for index in batch] for batch in LoadBalancingDistributedBatchSampler(sampler, at_most_50)]
    [[3, 6, 38], [41]]

    Give it to a DataLoader as ``batch_sampler``. The number of batches may change with the epoch. With Lightning,
    ``Trainer(use_distributed_sampler=False)`` is needed: it replaces samplers, but cannot replace batch samplers. And
    Lightning asks a loader for its length once, and leaves out what a longer epoch has more: where the number changes,
    ``Trainer(reload_dataloaders_every_n_epochs=1)`` and ``set_epoch(self.current_epoch)`` in ``train_dataloader``.

    Args:
        sampler: whose samples are cut.
        batch_fn: from a list of indices to a list of batches, each a list of indices. It must depend on its argument
            alone: if it drew random numbers, ranks would disagree about the number of steps.
        drop_last: leaves out the last batches of ranks that have more than others.

    Raises:
        TypeError: ``sampler`` is of another class.
        ValueError: from the iteration and ``len``, on all ranks: a batch is empty, a rank has none while others have
            some, or ``batch_fn`` returns something else when called again.
    """

    def __init__(
        self, sampler: LoadBalancingDistributedSampler, batch_fn: BatchFunction, drop_last: bool = False
    ) -> None:
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise TypeError(f"sampler is a LoadBalancingDistributedSampler, not a {type(sampler).__name__}")
        self.sampler = sampler
        self.batch_fn = batch_fn
        self.drop_last = drop_last
        self._progress: Progress[list[int]] = Progress()
        self._batches: list[list[int]] = []
        self._epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """As :meth:`LoadBalancingDistributedSampler.set_epoch`; frameworks that call the sampler's do the same."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._cut())

    def __iter__(self) -> Iterator[list[int]]:
        return self._progress.begin(self.sampler.epoch, self._cut())

    def _cut(self) -> list[list[int]]:
        """This rank's batches of the epoch."""
        if self._epoch != self.sampler.epoch:
            shares = self.sampler.schedule().t().tolist()
            every = [self._call(share) for share in shares]
            if every[0] != self._call(shares[0]):
                raise ValueError(
                    "batch_fn returned other batches for the same indices: ranks would take different numbers of steps"
                )
            steps = _steps([len(batches) for batches in every], self.drop_last)
            own = every[self.sampler.rank]
            self._batches = [own[step % len(own)] for step in range(steps)]
            self._epoch = self.sampler.epoch
        return self._batches

    def _call(self, indices: list[int]) -> list[list[int]]:
        batches = [list(batch) for batch in self.batch_fn(list(indices))]
        if not all(batches):
            raise ValueError(f"batch_fn returned an empty batch for {len(indices)} indices")
        return batches

    # ---- checkpoints ----

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """As :meth:`LoadBalancingDistributedSampler.state_dict`; the position counts batches, that is steps."""
        epoch = self.sampler.epoch
        position = self._progress.position(epoch) if position is None else position
        return {
            "epoch": epoch,
            "position": checked(position, len(self)),
            "batches": len(self),
            "order": self.sampler.order(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As :meth:`LoadBalancingDistributedSampler.load_state_dict`.

        Raises:
            ValueError: also where ``batch_fn`` cuts the epoch into another number of batches.
        """
        compare(state_dict.get("order"), self.sampler.order())
        epoch, position = numbers(state_dict, "epoch", "position")
        named = self.sampler.epoch
        self.sampler.set_epoch(epoch)
        compare(state_dict, {"batches": len(self)})
        self._progress.load(epoch, checked(position, len(self)))
        self.sampler.set_epoch(next_epoch(named, epoch, position == len(self)))


def _steps(counts: list[int], drop_last: bool) -> int:
    if max(counts) > 0 == min(counts):
        rank = counts.index(0)
        raise ValueError(f"batch_fn returned no batch for rank {rank} and {max(counts)} for another: it cannot follow")
    return min(counts) if drop_last else max(counts)
