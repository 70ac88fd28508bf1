# SPDX-License-Identifier: MIT
"""The description of a job: one value, the same on every rank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

#: A rank's report. ``result`` is the program's; ``counters`` the library's at the end, None where it is not loaded.
Report = dict[str, Any]


@dataclass(frozen=True)
class Job:
    program: str
    """A key of :data:`rank.PROGRAMS`."""
    ranks: int
    device: str = "cuda"
    """Or "cpu"."""
    plugin: bool = True
    """False: NCCL's own sockets, and gloo on the CPU."""
    options: dict[str, Any] = field(default_factory=dict)
    """The program's own."""

    @property
    def name(self) -> str:
        """Also the name of a directory."""
        return f"{self.program}-{self.device}-{self.ranks}-{'plugin' if self.plugin else 'own'}"

    @property
    def backend(self) -> str:
        """The name for torch.distributed."""
        if self.device == "cuda":
            return "nccl"
        return "bagua_net" if self.plugin else "gloo"


@dataclass(frozen=True)
class Task:
    """One rank's part."""

    job: Job
    rank: int
    directory: str
    """Where the ranks meet, in a file, and leave their reports."""
    seconds: float
    """Until an operation that does not end is given up."""
    parent: int
    """Process id."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Task:
        fields = json.loads(text)
        return Task(**{**fields, "job": Job(**fields["job"])})
