# SPDX-License-Identifier: MIT
"""The picture: bus bandwidth by size, a line per transport with its spread; bars for a model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ... import _sizes
from ..._errors import BaguaNetError
from ..workload.result import Row


class PlotUnavailable(BaguaNetError):
    """matplotlib is not installed, or makes no such file."""


def check(path: Path) -> None:
    """Called before the run.

    Raises:
        PlotUnavailable: matplotlib is not installed, or makes no such file.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotUnavailable("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise PlotUnavailable(f"{path}: not a kind of file that matplotlib writes: {', '.join(sorted(known))}")


def write(path: Path, rows: list[Row], title: str) -> None:
    """Raises OSError where the file cannot be written."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    if rows[0].label:
        _bars(axes, rows)
    else:
        _lines(axes, rows)
    axes.set_title(title)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bars(axes: Any, rows: list[Row]) -> None:
    milliseconds = [row.seconds * 1e3 for row in rows]
    low = [(row.seconds - min(row.rounds)) * 1e3 for row in rows]
    high = [(max(row.rounds) - row.seconds) * 1e3 for row in rows]
    axes.bar([row.transport for row in rows], milliseconds, yerr=[low, high], capsize=6)
    axes.set_ylabel(f"communication of one step of {rows[0].label} (ms, less is better)")


def _lines(axes: Any, rows: list[Row]) -> None:
    for name in dict.fromkeys(row.transport for row in rows):
        mine = [row for row in rows if row.transport == name]
        at = [row.size for row in mine]
        (line,) = axes.plot(at, [row.busbw for row in mine], marker="o", markersize=3, label=name)
        scale = [row.busbw * row.seconds for row in mine]
        axes.fill_between(
            at,
            [k / max(row.rounds) for k, row in zip(scale, mine, strict=True)],
            [k / min(row.rounds) for k, row in zip(scale, mine, strict=True)],
            alpha=0.2,
            color=line.get_color(),
        )
    every = sorted({row.size for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(every, [_sizes.show(size) for size in every], rotation=45, ha="right")
    axes.set_ylabel("bus bandwidth (GB/s, more is better)")
    axes.grid(alpha=0.3)
    axes.legend()
