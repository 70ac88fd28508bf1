# SPDX-License-Identifier: MIT
"""The tables of docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from benchmarks.collectives import report as collectives
from benchmarks.front import figures
from benchmarks.report import results
from benchmarks.report.figures import marked, number, size, span
from benchmarks.report.results import CellRecord
from benchmarks.run.scenarios import KIB, MIB
from benchmarks.steps import report as steps

_SIZES = (16 * KIB, 256 * KIB, MIB, 16 * MIB, 256 * MIB)
#: Title → flow classes of virtual Ethernet in Mbit/s.
_NETWORKS = {
    "No limit for each flow": (),
    "Each flow limited to 1 Gbit/s, eight paths": figures.CLASSES,
    "Eight unequal paths, of 900 to 50 Mbit/s": (900, 800, 700, 600, 400, 200, 100, 50),
}
_MODELS = ("VGG16",)
_STEP_NETWORKS = ("1 Gbit/s", "10 Gbit/s")
_WAYS = {
    "bagua_net plain": "plain DDP",
    "bagua_net bf16": "averages of bfloat16",
    "bagua_net PowerSGD": "torch's PowerSGD, rank 4",
    "bagua_net ByteGrad 8": "ByteGrad, 8 bits",
    "bagua_net ByteGrad 4": "ByteGrad, 4 bits",
}
#: As the results name them → as torch does.
_CALLS = {
    "all_reduce": "`all_reduce`",
    "broadcast": "`broadcast`",
    "all_gather, tensor": "`all_gather_into_tensor`",
    "reduce_scatter, tensor": "`reduce_scatter_tensor`",
    "all_to_all, tensor": "`all_to_all_single`",
    "send and recv": "`send` and `recv`",
}
_CALL_SIZES = (KIB, 64 * KIB, MIB, 64 * MIB)


def _ratio(record: CellRecord, rival: str) -> str:
    ours, theirs = (median(record.values(side).values()) for side in ("ours", rival))
    gain = float(number(ours)) / float(number(theirs))
    return marked(f"{gain:.2f}", gain < 1)


def _rows(records: Sequence[CellRecord]) -> Iterator[str]:
    yield "| message | NCCL as it comes | at its best setting | bagua_net | × NCCL | × best |"
    yield "|---|---|---|---|---|---|"
    for record in records:
        if record.cell.size in _SIZES:
            values = " | ".join(span(record.values(side)) for side in ("nccl", "tuned", "ours"))
            yield f"| {size(record.cell.size)} | {values} | {_ratio(record, 'nccl')} | {_ratio(record, 'tuned')} |"


def nccl() -> str:
    stored = results.load(figures.NCCL)
    out: list[str] = []
    for title, classes in _NETWORKS.items():
        out += [f"### {title}", "", *_rows(figures.nccl_cells(stored, classes)), ""]
    pairs = stored.settings["pairs"]["S12"]
    link = figures.link(figures.NCCL, "docs")
    return "\n".join([*out, f"NCCL {stored.settings['nccl_version']}, {pairs} runs of each side: {link}."])


def _seconds(readings: Sequence[steps.Reading], model: str, network: str, side: str) -> str:
    here = [each["seconds"] for each in readings if steps.cell_of(each) == (model, network, 2) and each["side"] == side]
    return span(dict(enumerate(here)))


def training() -> str:
    _, readings = steps.load(figures.STEPS)
    out: list[str] = []
    for model in _MODELS:
        out += [f"| {model} | {' | '.join(_STEP_NETWORKS)} |", "|---" * (len(_STEP_NETWORKS) + 1) + "|"]
        for side, name in _WAYS.items():
            cells = " | ".join(_seconds(readings, model, network, side) for network in _STEP_NETWORKS)
            out.append(f"| {name} | {cells} |")
        out.append("")
    return "\n".join([*out, f"From {figures.link(figures.STEPS, 'docs')}."])


def _times(found: Mapping[tuple[str, int], collectives.Reading], name: str, nbytes: int) -> str:
    value = collectives.ratio(found[name, nbytes]) if (name, nbytes) in found else None
    return "–" if value is None else marked(number(value), value < 1)


def calls() -> str:
    head, readings = collectives.load(figures.COLLECTIVES)
    found = {(each["name"], each["bytes"]): each for each in readings if (each["hosts"], each["ranks"]) == (1, 4)}
    out = [f"| | {' | '.join(map(size, _CALL_SIZES))} |", "|---" * (len(_CALL_SIZES) + 1) + "|"]
    for name, shown in _CALLS.items():
        out.append(f"| {shown} | {' | '.join(_times(found, name, nbytes) for nbytes in _CALL_SIZES)} |")
    link = figures.link(figures.COLLECTIVES, "docs")
    return "\n".join([*out, "", f"Medians of {head['settings']['pairs']} runs: {link}."])
