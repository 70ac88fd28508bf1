# SPDX-License-Identifier: MIT
"""What is read: a model on a network, and how many readings of each side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    model: str
    network: str
    ranks: int
    pairs: int
    """Readings of each side."""

    def names(self) -> tuple[str, str, int]:
        """As ``report.cell_of``."""
        return self.model, self.network, self.ranks


def every(models: Sequence[str], networks: Sequence[str], ranks: Sequence[int], pairs: int) -> list[Cell]:
    return [Cell(model, network, each, pairs) for model in models for network in networks for each in ranks]


#: ``--quick``: the cheapest first. Where one pair takes many minutes, one is read: those steps spread least.
QUICK = (
    Cell("VGG16", "no caps", 2, 2),
    Cell("VGG16", "10 Gbit/s", 2, 2),
    Cell("VGG16", "1 Gbit/s", 2, 2),
    Cell("BERT-large", "10 Gbit/s", 2, 2),
    Cell("VGG16", "20 ms, 0.1 % lost", 2, 2),
    Cell("VGG16", "1 Gbit/s", 4, 2),
    Cell("VGG16", "unequal classes", 2, 1),
    Cell("BERT-large", "1 Gbit/s", 2, 1),
    Cell("VGG16", "100 Mbit/s", 2, 1),
)

#: ``--quick`` leaves out what another side shows as well.
QUICK_SIDES = (
    "gloo plain",
    "bagua_net plain",
    "bagua_net bf16",
    "bagua_net PowerSGD",
    "gloo ByteGrad 8",
    "bagua_net ByteGrad 8",
    "bagua_net ByteGrad 4",
    "bagua_net QAdam 1",
    "bagua_net low precision",
    "bagua_net DiLoCo 8",
    "bagua_net async",
    "bagua_net auto",
)
