# SPDX-License-Identifier: MIT
"""The README's picture: NCCL's bus bandwidth by size with the plugin and without, for light and for dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report.chart import compact
from benchmarks.report.figures import size
from benchmarks.report.results import CellRecord

#: Sides from the back to the front: name, and colour on a light and on a dark page. The colours differ in lightness as
#: well, so that a reader who confuses hues still tells them apart.
_LINES = (
    ("nccl", "NCCL as it comes", {"light": "#8c959f", "dark": "#768390"}),
    ("tuned", "NCCL tuned", {"light": "#0969da", "dark": "#539bf5"}),
    ("ours", "bagua_net", {"light": "#bc4c00", "dark": "#f0883e"}),
)
_INK = {"light": "#1f2328", "dark": "#d1d7e0"}
_FAINT = {"light": "#d1d9e0", "dark": "#3d444d"}
THEMES = tuple(_INK)


def _line(axes: Any, records: Sequence[CellRecord], side: str, label: str, colour: str) -> None:
    sizes = [record.cell.size for record in records]
    values = [list(record.values(side).values()) for record in records]
    axes.fill_between(sizes, [min(each) for each in values], [max(each) for each in values], color=colour, alpha=0.2)
    axes.plot(sizes, [median(each) for each in values], color=colour, marker="o", markersize=3.5, label=label)


def _panel(axes: Any, title: str, records: Sequence[CellRecord], theme: str) -> None:
    for side, label, colours in _LINES:
        _line(axes, records, side, label, colours[theme])
    sizes = [record.cell.size for record in records]
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [size(nbytes) for nbytes in sizes], rotation=45, ha="right")
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=11, loc="left", color=_INK[theme])
    axes.grid(axis="y", color=_FAINT[theme], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK[theme], labelsize=9, length=0)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(_FAINT[theme])


def write(path: Path, theme: str, panels: Mapping[str, Sequence[CellRecord]]) -> None:
    """Draws title → rows of one network, smallest size first, into an SVG. Lines are medians, bands the lowest and the
    highest run.

    Raises:
        ImportError: matplotlib is missing.
        OSError: the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bagua_net", "font.family": "sans-serif"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.4), layout="constrained", squeeze=False)
    for place, (title, records) in zip(axes[0], panels.items(), strict=True):
        _panel(place, title, records, theme)
    axes[0, 0].set_ylabel("bus bandwidth, GB/s", color=_INK[theme])
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=3, frameon=False, labelcolor=_INK[theme]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    if path.suffix == ".svg":
        compact(path)


def panels_of(networks: Mapping[str, Sequence[CellRecord]]) -> dict[str, list[CellRecord]]:
    """The rows in which all sides were measured."""
    return {
        title: [record for record in records if all(record.values(side) for side, *_ in _LINES)]
        for title, records in networks.items()
    }
