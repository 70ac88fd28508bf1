# SPDX-License-Identifier: MIT
"""The figures of one transport at one size."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from . import ops


@dataclass(frozen=True)
class Row:
    label: str
    """The model's name, or ""."""
    op: str
    nranks: int
    size: int
    """Bytes."""
    count: int
    """Elements, as nccl-tests counts them: a block's, where the operation works in blocks."""
    dtype: str
    redop: str
    """ "none" where nothing is reduced."""
    transport: str
    rounds: list[float]
    """Seconds per call of each round, of the slowest rank."""
    iters: int
    """Calls in a round."""
    wrong: int
    """Elements that differ from the exact result, by more than a codec may lose, over all ranks and checks."""
    used: list[float]
    """Processor seconds per call of each round: of all threads of a rank's process, the mean of the ranks."""
    chosen: str = ""
    """What the network chose for these calls, in its own words: NCCL's algorithm and protocol. "": it does not say."""

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def processor_seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.used)

    @property
    def algbw(self) -> float:
        """GB/s: size over time."""
        return self.size / self.seconds / 1e9

    @property
    def busbw(self) -> float:
        """GB/s on each link, by nccl-tests' factors (``ops``)."""
        return self.algbw * ops.OPS[self.op].factor(self.nranks)

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file: the raw figures and those of the table."""
        return {
            **asdict(self),
            "time_us": self.seconds * 1e6,
            "spread_us": [min(self.rounds) * 1e6, max(self.rounds) * 1e6],
            "processor_us": self.processor_seconds * 1e6,
            "algbw_gbps": self.algbw,
            "busbw_gbps": self.busbw,
        }
