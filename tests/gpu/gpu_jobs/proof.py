# SPDX-License-Identifier: MIT
"""The outcome of each job as a line of JSON in a file, written as soon as the job has ended: the time on a GPU may be
over at any moment, and the results so far must be kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .job import Job, Report
from .launch import JobFailed, Outcome
from .nccl_log import NcclLog

#: Characters kept of a failure's text, from its end.
_TAIL = 4000


def _log(log: NcclLog) -> dict[str, Any]:
    """The same with lists for sets, which JSON lacks."""
    return {
        "version": log.version,
        "plugin": log.plugin,
        "networks": sorted(log.networks),
        "connections": dict(log.connections),
        "choices": sorted(map(list, log.choices)),
        "splits": log.splits,
        "warnings": log.warnings[-5:],
    }


def row(job: Job, came: Outcome | JobFailed) -> dict[str, Any]:
    """The reports of the job's ranks and the facts in NCCL's logs, or why it failed."""
    about = asdict(job)
    if isinstance(came, JobFailed):
        return {**about, "failure": str(came)[-_TAIL:]}
    return {**about, "failure": "", "reports": came.reports, "nccl": [_log(log) for log in came.logs]}


def append(path: Path, job: Job, came: Outcome | JobFailed) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row(job, came)) + "\n")


def wrong(found: dict[str, Any]) -> list[str]:
    """What is wrong in a :func:`row`. Empty: nothing."""
    if found["failure"]:
        return [found["failure"]]
    texts = []
    for report, log in zip(found["reports"], found["nccl"], strict=True):
        texts += [
            f"rank {report['rank']}: {text}" for text in [*_results(report["result"]), *_path(found, report, log)]
        ]
    losses = [report["result"]["losses"] for report in found["reports"] if "losses" in report["result"]]
    return texts if losses[1:] == losses[:-1] else [*texts, f"the ranks disagree on their losses: {losses}"]


def _results(result: Any) -> list[str]:
    """What is wrong in a result, which lists settings or tells whether each step was right."""
    if isinstance(result, list):
        return [text for setting in result for text in setting["wrong"]]
    steps = {name: result.get(name, []) for name in ("replays", "whole", "parts", "right")}
    return [f"{name}: {values}" for name, values in steps.items() if not all(values)]


def _path(found: dict[str, Any], report: Report, log: dict[str, Any]) -> list[str]:
    """The plugin carried the data, or was not loaded."""
    texts = []
    sent = (report["counters"] or {}).get("bytes_sent", 0)
    if bool(sent) != found["plugin"]:
        texts.append(f"the library has sent {sent} bytes")
    if found["device"] == "cuda" and log["networks"] != ["BaguaNet" if found["plugin"] else "Socket"]:
        texts.append(f"NCCL's networks are {log['networks']}")
    return texts
