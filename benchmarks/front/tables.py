# SPDX-License-Identifier: MIT
"""The tables of docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.collectives import report as collectives
from benchmarks.front import figures
from benchmarks.report import jsonl, results
from benchmarks.report.figures import marked, number, size, span
from benchmarks.report.jsonl import Reading
from benchmarks.report.results import CellRecord
from benchmarks.run.scenarios import KIB, MIB
from benchmarks.steps import report as steps

_SIZES = (16 * KIB, 256 * KIB, MIB, 16 * MIB, 256 * MIB)
#: Title → flow classes of virtual Ethernet in Mbit/s.
_NETWORKS = {
    "One path without a limit": (),
    "Eight paths of 1 Gbit/s": figures.CLASSES,
    "Eight unequal paths, of 900 to 50 Mbit/s": (900, 800, 700, 600, 400, 200, 100, 50),
}
#: NCCL's settings there: in words, by the results' name.
_FREE = {"default sockets, 256 KiB": "256 KiB buffer", "1 × 2, 128 KiB": "2 sockets, 128 KiB buffer"}
#: Model → networks.
_STEPS = {"VGG16": ("100 Mbit/s", "1 Gbit/s", "10 Gbit/s"), "BERT-large": ("100 Mbit/s", "1 Gbit/s", "10 Gbit/s")}
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
_PLACES = {1: "one host", 2: "two hosts"}
_CALL_SIZES = (KIB, 64 * KIB, MIB, 64 * MIB)


def _ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    gain = figures.quotient(theirs.values(), ours.values(), faster=True)
    return marked(f"{gain:.2f}", gain < 1)


def _rows(records: Sequence[CellRecord], settings: Mapping[str, str]) -> Iterator[str]:
    yield f"| message | NCCL as it comes | {' | '.join(settings.values())} | bagua_net | × NCCL | × its best |"
    yield "|---" * (len(settings) + 5) + "|"
    for record in records:
        if record.cell.size in _SIZES:
            theirs = [record.values("nccl"), *(figures.nccl_values(record, setting) for setting in settings)]
            ours = record.values("ours")
            best = max(theirs, key=lambda values: median(values.values()))
            values = " | ".join(span(each) for each in (*theirs, ours))
            yield f"| {size(record.cell.size)} | {values} | {_ratio(ours, theirs[0])} | {_ratio(ours, best)} |"


def nccl() -> str:
    stored = results.load(figures.NCCL)
    out: list[str] = []
    for title, classes in _NETWORKS.items():
        settings = figures.SOCKETS if classes else _FREE
        out += [f"### {title}", "", *_rows(figures.nccl_cells(stored, classes), settings), ""]
    pairs = stored.settings["pairs"]["S12"]
    link = figures.link(figures.NCCL, "docs")
    return "\n".join([*out, f"NCCL {stored.settings['nccl_version']}, {pairs} runs of each side: {link}."])


def _seconds(readings: Sequence[steps.Reading], model: str, network: str, side: str) -> str:
    here = [each["seconds"] for each in readings if steps.cell_of(each) == (model, network, 2) and each["side"] == side]
    return span(dict(enumerate(here)))


def training() -> str:
    _, readings = steps.load(figures.STEPS)
    out: list[str] = []
    for model, networks in _STEPS.items():
        out += [f"| {model} | {' | '.join(networks)} |", "|---" * (len(networks) + 1) + "|"]
        for side, name in _WAYS.items():
            cells = " | ".join(_seconds(readings, model, network, side) for network in networks)
            out.append(f"| {name} | {cells} |")
        out.append("")
    return "\n".join([*out, f"From {figures.link(figures.STEPS, 'docs')}."])


def _quotient(reading: Reading) -> float:
    theirs, ours = (reading["sides"][side] for side in (collectives.THEIRS, collectives.OURS))
    return figures.quotient(theirs, ours, faster=False)


def _times(found: Mapping[tuple[str, int], Reading], name: str, nbytes: int) -> str:
    value = _quotient(found[name, nbytes])
    return marked(number(value), value < 1)


def _between_two(hosts: int, source: Path = figures.COLLECTIVES) -> dict[tuple[str, int], Reading]:
    """(call, bytes) → its readings, of two ranks."""
    _, readings = jsonl.load(source)
    return {(each["name"], each["bytes"]): each for each in readings if (each["hosts"], each["ranks"]) == (hosts, 2)}


def calls() -> str:
    head, _ = jsonl.load(figures.COLLECTIVES)
    out = [f"| | {' | '.join(map(size, _CALL_SIZES))} |", "|---" * (len(_CALL_SIZES) + 1) + "|"]
    for hosts, place in _PLACES.items():
        found = _between_two(hosts)
        for name, shown in _CALLS.items():
            cells = " | ".join(_times(found, name, nbytes) for nbytes in _CALL_SIZES)
            out.append(f"| {shown}, {place} | {cells} |")
    link = figures.link(figures.COLLECTIVES, "docs")
    return "\n".join([*out, "", f"Medians of {head['settings']['pairs']} runs: {link}."])


def whole_steps() -> str:
    sources = {hosts: figures.TRAINING if hosts == 1 else figures.COLLECTIVES for hosts in _PLACES}
    out = [f"| a step of | {' | '.join(_PLACES.values())} |", "|---" * (len(_PLACES) + 1) + "|"]
    for model in ("ResNet-50", "GPT-2"):
        for way in ("DDP", "FSDP2"):
            cells = (_times(_between_two(*each), f"step of {model}, {way}", 0) for each in sources.items())
            out.append(f"| {model}'s size, {way} | {' | '.join(cells)} |")
    runs = (
        f"{_PLACES[hosts]} {jsonl.load(source)[0]['settings']['pairs']} runs, {figures.link(source, 'docs')}"
        for hosts, source in sources.items()
    )
    return "\n".join([*out, "", f"Medians: {'; '.join(runs)}."])
