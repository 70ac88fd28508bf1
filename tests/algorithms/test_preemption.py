# SPDX-License-Identifier: MIT
"""Lightning's preemption: its signal handlers call collectives, wherever each rank gets the signal."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bagua_net._lightning.preemption import Preemption
from tests.support.ranks import environment
from tests.support.tiers import variants

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
pytestmark = pytest.mark.gate

_SECONDS = 300


class Job:
    """Two tasks as SLURM starts them, whose ``scontrol`` is a script that says that it was called."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        script = directory / "scontrol"
        script.write_text(f"#!/bin/sh\ntouch {directory}/requeued\n")
        script.chmod(0o755)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self._common = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}
        self._common |= {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "job", "PATH": f"{directory}:{os.environ['PATH']}"}
        self._common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.tasks = [self._start(rank, options) for rank in range(2)]

    def _start(self, rank: int, options: tuple[str, ...]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.algorithms.jobs.preempted", str(self.directory), *options]
        with (self.directory / f"output.{rank}").open("w") as output:
            return subprocess.Popen(
                command,
                env=environment(self._common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}),
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def await_training(self) -> None:
        names, deadline = ("ready.0", "ready.1"), time.monotonic() + _SECONDS
        while not all((self.directory / name).exists() for name in names):
            assert time.monotonic() < deadline, self.printed()
            assert all(task.poll() is None for task in self.tasks), self.printed()
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        for task in self.tasks:
            task.send_signal(number)

    def await_requeue_or_end(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while not (self.directory / "requeued").exists() and any(task.poll() is None for task in self.tasks):
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.02)

    def end(self) -> None:
        """Waits until the tasks have ended by themselves."""
        for task in self.tasks:
            try:
                task.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"it goes on:\n{self.printed()}") from None

    def kill(self) -> None:
        for task in self.tasks:
            task.kill()
            task.wait()

    def printed(self) -> str:
        return "\n".join((self.directory / f"output.{rank}").read_text()[-4000:] for rank in range(2))


def _check(job: Job) -> None:
    """It has ended in good order, with a checkpoint."""
    assert list(job.directory.glob("*.ckpt")), job.printed()
    assert "DistBackendError" not in job.printed(), job.printed()


@pytest.mark.parametrize("seed", variants(0, nightly=range(1, 25)))
@pytest.mark.parametrize("number", variants(signal.SIGUSR1, nightly=[signal.SIGTERM]))
def test_a_preempted_job_saves_a_checkpoint(tmp_path: Path, number: signal.Signals, seed: int) -> None:
    requeues = number == signal.SIGUSR1
    job = Job(tmp_path, *["requeue"] * requeues)
    try:
        job.await_training()
        time.sleep(random.Random(seed).uniform(0, 0.3))  # anywhere in a batch
        job.send(number)
        if requeues:
            job.await_requeue_or_end()
            job.send(signal.SIGTERM)  # as SLURM does then
        job.end()
        _check(job)
    finally:
        job.kill()


@pytest.mark.nightly
@pytest.mark.parametrize("rank", variants(1, nightly=[0]))
def test_one_rank_is_enough(tmp_path: Path, rank: int) -> None:
    job = Job(tmp_path)
    try:
        job.await_training()
        job.tasks[rank].send_signal(signal.SIGTERM)
        job.end()
        _check(job)
    finally:
        job.kill()


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_handlers_of_both_packages_wait(package: str) -> None:
    module = f"{package}.trainer.connectors.signal_connector"
    handler: Any = type("_HandlersCompose", (), {"__module__": module, "__call__": lambda *_: None})()
    preemption: Any = Preemption()
    preemption._group = object()
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        preemption.resume()
        assert signal.getsignal(signal.SIGUSR2) is not handler
        preemption.stop()
        assert signal.getsignal(signal.SIGUSR2) is handler
    finally:
        signal.signal(signal.SIGUSR2, before)
