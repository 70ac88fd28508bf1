# SPDX-License-Identifier: MIT
"""The tables: Markdown out of a results file. Ratios are medians over pairs; a loss is bold."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from results import CellRecord, Results
from scenarios import KIB, MIB, SCENARIOS, Scenario

#: Share of the processors that other processes may take before a reading is called disturbed.
QUIET = 0.05

_STREAM_COLUMNS = (
    "network", "connections", "message", "capacity", "bare loop", "NCCL default", "NCCL tuned", "threads × sockets",
    "bagua_net", "× default", "× better NCCL", "of the limit",
)  # fmt: skip
_PINGPONG_COLUMNS = (
    "network", "message", "bare loop", "NCCL default", "NCCL tuned", "threads × sockets",
    "bagua_net", "× default", "× better NCCL",
)  # fmt: skip


def _size(size: int) -> str:
    if size >= MIB:
        return f"{size // MIB} MiB"
    return f"{size // KIB} KiB" if size >= KIB else f"{size} B"


def _number(value: float) -> str:
    """Three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def _spread(record: CellRecord, side: str) -> str:
    values = list(record.values(side).values())
    failures = record.failures(side)
    failed = f"{len(failures)} failed" if failures else ""
    if not values:
        return failed or "–"
    text = _number(median(values))
    if len(values) > 1:
        text += f" [{_number(min(values))}–{_number(max(values))}]"
    return f"{text}, {failed}" if failed else text


def _ratio(record: CellRecord, side: str, rival: str) -> float | None:
    """The median over pairs of side / rival."""
    own, other = record.values(side), record.values(rival)
    pairs = [own[pair] / other[pair] for pair in own if pair in other]
    return median(pairs) if pairs else None


def _better_nccl(record: CellRecord) -> str:
    """The side of NCCL that did better in this cell."""
    tuned = record.values("tuned")
    default = record.values("nccl")
    if not tuned or not default:
        return "tuned" if tuned else "nccl"
    gain = median(tuned.values()) / median(default.values())
    if record.cell.work == "pingpong":
        gain = 1 / gain
    return "tuned" if gain > 1 else "nccl"


def _ratio_text(record: CellRecord, rival: str) -> str:
    ratio = _ratio(record, "ours", rival)
    if ratio is None:
        return "–"
    text = f"{ratio:.2f}"
    lost = float(text) > 1 if record.cell.work == "pingpong" else float(text) < 1
    return f"**{text}**" if lost else text


def _share_of_limit(record: CellRecord) -> str:
    own = record.values("ours")
    if record.limit is not None and own:
        return f"{median(own.values()) / record.limit:.0%}"
    share = _ratio(record, "ours", "bare")
    return "–" if share is None else f"{share:.0%}"


def _row(record: CellRecord) -> list[str]:
    cell = record.cell
    stream = cell.work == "stream"
    row = [cell.network]
    if stream:
        row.append(str(cell.connections))
    row.append(_size(cell.size))
    if stream:
        row.append("–" if record.limit is None else _number(record.limit))
    row += [_spread(record, side) for side in ("bare", "nccl", "tuned")]
    row += [record.choices.get("tuned", "–"), _spread(record, "ours")]
    row += [_ratio_text(record, "nccl"), _ratio_text(record, _better_nccl(record))]
    if stream:
        row.append(_share_of_limit(record))
    return row


def _lines(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _section(scenario: Scenario, records: list[CellRecord]) -> Iterator[str]:
    stream = scenario.work == "stream"
    unit = "GB/s per direction and rank" if stream else "µs, less is better"
    columns = _STREAM_COLUMNS if stream else _PINGPONG_COLUMNS
    yield f"### {scenario.name}: {scenario.title} ({unit})"
    yield f"\nGoal: {scenario.goal}.\n"
    yield _lines(columns)
    yield "|" + "---|" * len(columns)
    for record in records:
        yield _lines(_row(record))
    yield ""


def _disturbance(results: Results) -> Iterator[str]:
    shares = [run.neighbours for record in results.cells.values() for run in record.runs if run.pair >= 0]
    noisy = [share for share in shares if share > QUIET]
    if noisy:
        yield (
            f"**The machine was not quiet**: in {len(noisy)} of {len(shares)} readings other processes took more than "
            f"{QUIET:.0%} of the processors, up to {max(noisy):.0%}.\n"
        )


def _heading(results: Results) -> Iterator[str]:
    machine, settings = results.machine, results.settings
    seeds = sorted({run.seed for record in results.cells.values() for run in record.runs if run.seed})
    yield (
        f"{results.started[:10]}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, congestion control {settings['congestion_control']}, "
        f"NCCL {settings['nccl_version']}, bagua_net {settings['plugin_version'] or '–'}. "
        f"Two ranks on this machine, host memory, no pinning; median [min–max] of {settings['pairs']} pairs."
    )
    yield f"\n`{results.command}`\n"
    yield from _disturbance(results)
    if settings["plugin_settings"]:
        given = " ".join(f"{name}={value}" for name, value in settings["plugin_settings"].items())
        yield f"bagua_net ran with `{given}`.\n"
    if seeds:
        yield f"Seeds of the flow hash: {', '.join(f'{seed:#010x}' for seed in seeds)}.\n"


def render(results: Results) -> str:
    """The whole report, Markdown."""
    lines = list(_heading(results))
    for scenario in SCENARIOS:
        records = [record for record in results.cells.values() if record.cell.scenario == scenario.name]
        if records:
            lines += _section(scenario, records)
    return "\n".join(lines)
