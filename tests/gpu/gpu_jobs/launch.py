# SPDX-License-Identifier: MIT
"""The processes of a job: started together, watched, and never left behind."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bagua_net

from . import nccl_log
from .job import Job, Report, Task

#: The package ``tests`` is there.
_ROOT = Path(__file__).resolve().parents[3]
#: A job does not inherit settings, except NCCL_SOCKET_IFNAME, which names an interface that works.
_SETTINGS = ("NCCL_", "BAGUA_NET_", "GLOO_", "TORCH_NCCL_", "TORCHELASTIC_")
_KEPT = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
#: Seconds that the others have after the first failure to report what they saw.
_GRACE = 3.0
_TAIL = 3000


class JobFailed(Exception):
    """A rank failed or did not end; the text has the end of what each rank wrote."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job."""

    reports: list[Report]
    logs: list[nccl_log.NcclLog]
    """NCCL's, by rank."""
    directory: Path


def _log(directory: Path, rank: int) -> Path:
    return directory / f"nccl-{rank}.log"


def network_variables(plugin: bool) -> dict[str, str]:
    """The variables that make NCCL use this network or fail."""
    return dict(bagua_net.env()) if plugin else {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none"}


def environment(task: Task, gpus: Sequence[str]) -> dict[str, str]:
    """A rank's environment. The rank sees one GPU, and its host id tells NCCL that no other rank is on its host, so
    that even ranks of one GPU use the network; LOCAL_RANK is consistent with that."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS) or name in _KEPT}
    paths = [str(_ROOT), str(Path(bagua_net.__file__).parents[1]), kept.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "RANK": str(task.rank),
        "WORLD_SIZE": str(task.job.ranks),
        "OMP_NUM_THREADS": "1",
        "NCCL_HOSTID": f"bagua-net-test-{task.rank}",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,TUNING",
        "NCCL_DEBUG_FILE": str(_log(Path(task.directory), task.rank)),
    }
    if gpus:
        own["CUDA_VISIBLE_DEVICES"] = gpus[task.rank % len(gpus)]
    return {**_LOOPBACK, **kept, **own, **network_variables(task.job.plugin)}


def visible_gpus(count: int) -> list[str]:
    """The ``count`` GPUs that torch sees, in the terms of CUDA_VISIBLE_DEVICES."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


@contextmanager
def _processes(tasks: Sequence[Task], gpus: Sequence[str]) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """One process per task, each with a descriptor that becomes readable when it ends. None is left after the block."""
    started: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for task in tasks:
            life, end = os.pipe()
            try:
                with (Path(task.directory) / f"rank-{task.rank}.txt").open("wb") as output:
                    started[life] = subprocess.Popen(
                        [sys.executable, "-m", "tests.gpu.gpu_jobs.rank", task.to_json()],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environment(task, gpus),
                        pass_fds=(end,),
                    )
            finally:
                os.close(end)
        yield started
    finally:
        for process in started.values():
            process.kill()
        for life, process in started.items():
            process.wait()
            os.close(life)


def _watch(processes: dict[int, subprocess.Popen[bytes]], seconds: float) -> str:
    """Waits until all have ended; returns what went wrong, or ""."""
    deadline = time.monotonic() + seconds
    failure = ""
    with selectors.DefaultSelector() as selector:
        for life in processes:
            selector.register(life, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                return failure or f"it took longer than {seconds:.0f} s"
            for key, _ in events:
                selector.unregister(key.fd)
                status = processes[key.fd].wait()
                if status and not failure:
                    failure = f"a rank ended with status {status}"
                    deadline = min(deadline, time.monotonic() + _GRACE)
    return failure


def _said(directory: Path, ranks: int) -> str:
    texts = []
    for rank in range(ranks):
        lines = (directory / f"rank-{rank}.txt").read_text(errors="replace")[-_TAIL:].strip()
        warnings = "\n".join(nccl_log.read(_log(directory, rank)).warnings[-5:])
        texts.append(f"--- rank {rank}\n{lines}\n{warnings}".rstrip())
    return "\n".join(texts)


def run(job: Job, directory: Path, seconds: float, gpus: Sequence[str] = ()) -> Outcome:
    """Runs the job to its end.

    Args:
        directory: an empty one.
        seconds: the time limit.
        gpus: in the terms of CUDA_VISIBLE_DEVICES; the ranks are assigned to them in turn.

    Raises:
        JobFailed: a rank failed, or it took too long. No process is left.
    """
    tasks = [Task(job, rank, str(directory), seconds, os.getpid()) for rank in range(job.ranks)]
    with _processes(tasks, gpus) as processes:
        failure = _watch(processes, seconds)
    if failure:
        raise JobFailed(f"{job.program} of {job.ranks} ranks: {failure}\n{_said(directory, job.ranks)}")
    reports = [json.loads((directory / f"report-{task.rank}.json").read_text()) for task in tasks]
    logs = [nccl_log.read(_log(directory, task.rank)) for task in tasks]
    return Outcome(reports, logs, directory)
