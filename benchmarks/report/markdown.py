# SPDX-License-Identifier: MIT
"""The report: Markdown tables of a results file. Ratios are medians over pairs; a loss is bold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.report.results import CellRecord, Results
from benchmarks.report.tables import BASELINE_COLUMNS, baseline, table_of
from benchmarks.run.scenarios import GPU, SCENARIOS, WHOLE_NCCL, WORKS, Cell, Scenario

#: Share of the processors that other processes may take before a reading counts as disturbed.
QUIET = 0.05


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _section(scenario: Scenario, records: list[CellRecord]) -> Iterator[str]:
    table = table_of(scenario.name, scenario.work)
    compared = any(record.values("baseline") for record in records)
    columns = [*table.columns, *(BASELINE_COLUMNS if compared else ())]
    yield f"### {scenario.name}: {scenario.title} ({WORKS[scenario.work].unit})"
    yield f"\nGoal: {scenario.goal}.\n"
    yield _line(columns)
    yield "|" + "---|" * len(columns)
    for record in records:
        yield _line([*table.row(record, records), *(baseline(record) if compared else ())])
    yield ""


def _sides(results: Results) -> list[str]:
    """Older files do not name their sides."""
    found = {run.side for record in results.cells.values() for run in record.runs}
    return list(results.settings.get("sides") or sorted(found))


def _pairs_of(cell: Cell, settings: dict[str, Any]) -> int:
    """The readings of each side that a complete file has of this cell."""
    pairs = settings["pairs"]
    return int(pairs[cell.scenario] if isinstance(pairs, dict) else pairs)  # older files have one number


def _missing(results: Results) -> int:
    """Readings that a complete file would have beside those that are there."""
    settings, missing = results.settings, 0
    for record in results.cells.values():
        for side in {run.side for run in record.runs}:
            missing += _pairs_of(record.cell, settings) - len(record.values(side)) - len(record.failures(side))
    return missing


def _windows_of(cell: Cell, effort: dict[str, Any]) -> str:
    """The length of a cell's readings in words."""
    if cell.work == "pingpong":
        return f"{effort['rounds']} round trips of up to 16 KiB, fewer of larger messages"
    if cell.work == "collective":
        return f"{effort['collective_rounds']} rounds of about {effort['collective_s']:g} s per size"
    if cell.work == "idle":
        return f"{effort['idle_s']:g} s idle"
    prefix, where = "", "without caps"
    if cell.path == "shared":
        prefix, where = "shared_", "over a shared bottleneck"
    elif cell.path == "wan":
        prefix, where = "wan_", "over a long line"
    elif cell.rates_mbits or cell.ranks > 2:
        prefix, where = "capped_", "under caps or between 16 ranks"
    return f"{effort[prefix + 'window_s']:g} s after {effort[prefix + 'warm_up_s']:g} s {where}"


def _extent(results: Results) -> Iterator[str]:
    """Sides, cells and windows: what the readings are."""
    settings, effort = results.settings, results.settings.get("effort")
    if not effort:
        return
    cells = [record.cell for record in results.cells.values()]
    wanted = settings.get("cells", len(cells))
    count = f"{len(cells)} cells" if wanted == len(cells) else f"**{len(cells)} of {wanted} cells**"
    windows = dict.fromkeys(_windows_of(cell, effort) for cell in cells)
    yield f"Sides: {', '.join(_sides(results))}. {count}. Readings: {'; '.join(windows)}.\n"
    missing = _missing(results)
    if missing > 0:
        yield f"**Incomplete**: {missing} readings are missing.\n"
    if any(record.finalists for record in results.cells.values()):
        yield (
            "A side with several settings was screened with shorter windows; its best "
            f"{effort['finalists']} were read in every pair, and the one with the best median over the pairs counts.\n"
        )


def _disturbance(results: Results) -> Iterator[str]:
    shares = [run.neighbours for record in results.cells.values() for run in record.runs if run.pair >= 0]
    noisy = [share for share in shares if share > QUIET]
    if noisy:
        yield (
            f"**The machine was not quiet**: in {len(noisy)} of {len(shares)} readings other processes took more than "
            f"{QUIET:.0%} of the processors, up to {max(noisy):.0%}.\n"
        )


def _on_gpus(results: Results) -> str:
    """The GPUs whose memory is reduced; "" for host memory."""
    gpus = results.machine.get("gpus")
    if gpus is None:
        return ""
    names = " and ".join(f"{gpu['name']} ({gpu['memory_mib']} MiB, driver {gpu['driver']})" for gpu in gpus)
    return f"memory of {names or 'GPUs'}, shared by {results.settings['sharing']}"


def _core_latency(results: Results) -> Iterator[str]:
    latency = results.machine.get("core_latency_ns")
    if latency:
        least, median, most = latency
        yield (
            f"Core latency: {least}–{most} ns for a cache line from the first processor to the second and back, "
            f"median {median} ns, over a second before the first reading.\n"
        )


def _builds(settings: dict[str, Any]) -> str:
    """The plugin and its baseline; builds of one version differ by their digests."""
    own = f"bagua_net {settings['plugin_version'] or '–'}"
    if "baseline_sha256" not in settings:
        return own
    return (
        f"{own} (SHA-256 {settings['plugin_sha256'][:8]}), baseline {settings['baseline_version']} "
        f"(SHA-256 {settings['baseline_sha256'][:8]})"
    )


def _pairs(results: Results) -> str:
    scenarios: dict[int, dict[str, None]] = {}
    for record in results.cells.values():
        scenarios.setdefault(_pairs_of(record.cell, results.settings), {})[record.cell.scenario] = None
    (usual, _), *fewer = sorted(scenarios.items(), reverse=True) or [(results.settings["pairs"], {})]
    return "".join([f"{usual} pairs", *(f", {pairs} in {', '.join(names)}" for pairs, names in fewer)])


def _pinning(results: Results) -> str:
    scenarios = {record.cell.scenario for record in results.cells.values()}
    bound = "each rank bound to its share of the processors" + (
        "" if scenarios == {WHOLE_NCCL} else f" in {WHOLE_NCCL}"
    )
    return bound if WHOLE_NCCL in scenarios else "no pinning"


def _heading(results: Results) -> Iterator[str]:
    machine, settings = results.machine, results.settings
    place = _on_gpus(results)
    nccl = f"NCCL {settings['nccl_version']}, " if settings.get("nccl_version") else ""
    torch = f"{'' if place else 'gloo of '}torch {settings['torch_version']}, " if settings.get("torch_version") else ""
    seeds = sorted({run.seed for record in results.cells.values() for run in record.runs if run.seed})
    yield (
        f"{results.started[:10]}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, congestion control {settings['congestion_control']}, "
        f"{nccl}{torch}{_builds(settings)}. "
        f"All ranks on this machine, two unless stated, {place or 'host memory'}, {_pinning(results)}; "
        f"median [min–max] of {_pairs(results)}."
    )
    yield f"\n`{results.command}`\n"
    yield from _extent(results)
    yield from _disturbance(results)
    yield from _core_latency(results)
    if settings["plugin_settings"]:
        given = " ".join(f"{name}={value}" for name, value in settings["plugin_settings"].items())
        yield f"bagua_net ran with `{given}`.\n"
    if seeds:
        yield f"Seeds of the flow hash: {', '.join(f'{seed:#010x}' for seed in seeds)}.\n"


def render(results: Results) -> str:
    """The whole report, Markdown."""
    lines = list(_heading(results))
    for scenario in (*SCENARIOS, GPU):
        records = [record for record in results.cells.values() if record.cell.scenario == scenario.name]
        if records:
            lines += _section(scenario, records)
    return "\n".join(lines)
