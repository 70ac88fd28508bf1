# SPDX-License-Identifier: MIT
"""Runs ``bagua-net bench`` as a command, without the settings of the environment.

record = bench_command.results(tmp_path, "--transport", "bagua", *bench_command.QUICK)
with bench_command.endless("--max", "1G") as (process, ranks):
    os.kill(ranks[1], signal.SIGKILL)
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bagua_net

SECONDS = 100
QUICK = ["--iters", "2", "--rounds", "1"]
SETTINGS = ("NCCL_", "BAGUA_NET_", "GLOO_", "TORCHELASTIC_")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(**extra: str) -> dict[str, str]:
    """This process's environment, without settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS) and k not in TORCHRUN}
    package_root = str(Path(bagua_net.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package_root, kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **extra}


def heed_interrupts() -> None:
    """A shell makes its background commands ignore SIGINT, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments: str, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bagua_net", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**extra),
        preexec_fn=heed_interrupts,
    )


def bench(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    process = start(*arguments, **extra)
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def results(tmp_path: Path, *arguments: str, **extra: str) -> dict[str, Any]:
    """The JSON record of a run, which must succeed with correct results everywhere."""
    file = tmp_path / "record.json"
    run = bench(*arguments, "--json", str(file), **extra)
    assert run.returncode == 0, run.stderr + run.stdout
    record: dict[str, Any] = json.loads(file.read_text())
    assert [row["wrong"] for row in record["results"]] == [0] * len(record["results"])
    return record


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def children(pid: int) -> dict[int, int]:
    """Process ids of a run's local ranks, by rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        arguments = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        found[json.loads(arguments[-2])["rank"]] = int(child)
    return found


@contextmanager
def endless(*arguments: str, **extra: str) -> Iterator[tuple[subprocess.Popen[str], dict[int, int]]]:
    """A run that has printed its first row and measures, and its ranks. All its processes end with the block."""
    process = start(*arguments, **extra)
    ranks: dict[int, int] = {}
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("#"):
                break
        ranks = children(process.pid)
        assert sorted(ranks) == [0, 1]
        yield process, ranks
    finally:
        process.kill()
        process.communicate()


def ended(pidfds: list[int]) -> bool:
    """Waits until all of these processes have ended."""
    waiting = set(pidfds)
    while waiting:
        ready, _, _ = select.select(waiting, [], [], 30)
        if not ready:
            return False
        waiting -= set(ready)
    return True
