# SPDX-License-Identifier: MIT
"""The tables: Markdown out of a results file. Ratios are medians over pairs; a loss is bold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from results import CellRecord, Results
from scenarios import GPU, SCENARIOS, WORKS, Scenario
from tables import table_of

#: Share of the processors that other processes may take before a reading is called disturbed.
QUIET = 0.05


def _lines(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _section(scenario: Scenario, records: list[CellRecord]) -> Iterator[str]:
    table = table_of(scenario.name, scenario.work)
    yield f"### {scenario.name}: {scenario.title} ({WORKS[scenario.work].unit})"
    yield f"\nGoal: {scenario.goal}.\n"
    yield _lines(table.columns)
    yield "|" + "---|" * len(table.columns)
    for record in records:
        yield _lines(table.row(record, records))
    yield ""


def _disturbance(results: Results) -> Iterator[str]:
    shares = [run.neighbours for record in results.cells.values() for run in record.runs if run.pair >= 0]
    noisy = [share for share in shares if share > QUIET]
    if noisy:
        yield (
            f"**The machine was not quiet**: in {len(noisy)} of {len(shares)} readings other processes took more than "
            f"{QUIET:.0%} of the processors, up to {max(noisy):.0%}.\n"
        )


def _on_gpus(results: Results) -> str:
    """Where the memory is that is reduced; "" for host memory."""
    gpus = results.machine.get("gpus")
    if gpus is None:
        return ""
    names = " and ".join(f"{gpu['name']} ({gpu['memory_mib']} MiB, driver {gpu['driver']})" for gpu in gpus)
    return f"memory of {names or 'GPUs'}, shared by {results.settings['sharing']}"


def _distance(results: Results) -> Iterator[str]:
    apart = results.machine.get("processors_apart_ns")
    if apart:
        least, median, most = apart
        yield (
            f"A cache line took {least}–{most} ns from the first processor to the second and back, {median} ns in the "
            "median, over a second before the first reading.\n"
        )


def _heading(results: Results) -> Iterator[str]:
    machine, settings = results.machine, results.settings
    place = _on_gpus(results)
    nccl = f"NCCL {settings['nccl_version']}, " if settings["nccl_version"] else ""
    torch = f"{'' if place else 'gloo of '}torch {settings['torch_version']}, " if settings.get("torch_version") else ""
    seeds = sorted({run.seed for record in results.cells.values() for run in record.runs if run.seed})
    yield (
        f"{results.started[:10]}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, congestion control {settings['congestion_control']}, "
        f"{nccl}{torch}bagua_net {settings['plugin_version'] or '–'}. "
        f"All ranks on this machine, two where nothing else is said, {place or 'host memory'}, no pinning; "
        f"median [min–max] of {settings['pairs']} pairs."
    )
    yield f"\n`{results.command}`\n"
    yield from _disturbance(results)
    yield from _distance(results)
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
