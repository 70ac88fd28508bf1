# SPDX-License-Identifier: MIT
"""The picture of a results file: the plugin's advantage over its rival by message size. A panel per kind of load, a
line per network."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report.figures import gain, size
from benchmarks.report.results import CellRecord, Results


class Panel(NamedTuple):
    title: str
    rival: str
    """The side that is 1."""


#: Panel → network → size → ratio.
Panels = Mapping[Panel, Mapping[str, Mapping[int, float]]]

_RIVALS = {"nccl": "NCCL default", "gloo": "gloo"}


def available() -> bool:
    """Is matplotlib installed?"""
    return importlib.util.find_spec("matplotlib") is not None


def _panel(record: CellRecord) -> Panel:
    cell = record.cell
    load = f"{cell.ranks} ranks" if cell.work == "collective" else f"{cell.connections} connections"
    title = f"{cell.scenario} {cell.heading.title}" + ("" if cell.work == "pingpong" else f", {load}")
    return Panel(title, cell.heading.rival)


def panels(stored: Results) -> Panels:
    """The lines with at least two sizes. Above 1 the plugin is better, whatever the unit."""
    found: dict[Panel, dict[str, dict[int, float]]] = {}
    for record in stored.cells.values():
        times = gain(record, record.cell.heading.rival)
        if times is not None:
            line = found.setdefault(_panel(record), {}).setdefault(record.cell.network, {})
            line[record.cell.size] = times
    kept = {
        panel: {network: line for network, line in lines.items() if len(line) > 1} for panel, lines in found.items()
    }
    return {panel: lines for panel, lines in kept.items() if lines}


def _draw(axes: Any, panel: Panel, lines: Mapping[str, Mapping[int, float]]) -> None:
    for network, line in lines.items():
        at = sorted(line)
        axes.plot(at, [line[nbytes] for nbytes in at], marker="o", markersize=3, label=network)
    every = sorted({nbytes for line in lines.values() for nbytes in line})
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [size(nbytes) for nbytes in every], rotation=45, ha="right")
    axes.set_ylim(bottom=0)
    axes.set_title(panel.title, fontsize=9)
    axes.set_ylabel(f"× {_RIVALS[panel.rival]}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def compact(path: Path) -> None:
    """Removes what an SVG does not need: line breaks, and the preamble that names the program."""
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", path.read_text(), flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text)
    path.write_text(re.sub(r"> <", "><", text).strip() + "\n")


def write(path: Path, stored: Results) -> bool:
    """Draws into an SVG or PNG file. Writes nothing and returns False where no line has two sizes.

    Raises:
        OSError: the file cannot be written.
        ValueError: matplotlib does not know this type of file.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bagua_net"})  # small, and the same each time
    from matplotlib import pyplot as plt

    drawn = panels(stored)
    if not drawn:
        return False
    figure, axes = plt.subplots(len(drawn), 1, figsize=(7, 3.2 * len(drawn)), layout="constrained", squeeze=False)
    for place, (panel, lines) in zip(axes[:, 0], drawn.items(), strict=True):
        _draw(place, panel, lines)
    figure.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    if path.suffix == ".svg":
        compact(path)
    return True
