# SPDX-License-Identifier: MIT
"""The threads that run an algorithm's collectives: their start, and the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from bagua_net.algorithms import _worker
from tests.support.tiers import variants

_ENDS_AT_ONCE = """
import threading, time, torch
from bagua_net.algorithms._worker import Worker

worker, go = Worker("worker"), threading.Event()

def call():
    go.wait()
    return torch.ones(1)

future = worker.post(call)
future.then(lambda _: time.sleep(0.5))  # runs on the worker's thread, called by C++, when the result is there
go.set()
print(float(future.wait()))
"""


_ENDS_BESIDE_ROUNDS = """
import torch, torch.distributed as dist
from bagua_net.algorithms import AsyncModelAverage, attach

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1000, 1000), broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters())
attach(model, optimizer, AsyncModelAverage(interval_ms=0))
model(torch.ones(1, 1000)).sum().backward()
optimizer.step()  # averages from here on, without an end
print(1.0)
"""


@pytest.mark.gate
@pytest.mark.parametrize(
    "program",
    variants(pytest.param(_ENDS_BESIDE_ROUNDS, id="rounds"), nightly=[pytest.param(_ENDS_AT_ONCE, id="worker")]),
)
def test_a_process_that_ends_at_once_is_not_aborted(program: str) -> None:
    """A thread that comes back from C++ while Python shuts down is ended there, which C++ does not survive."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")


def test_a_post_after_one_that_could_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    worker = _worker.Worker("worker")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            worker.post(lambda: torch.ones(1))
    assert not any(thread.name == "worker" for thread in _worker._running)
    done = threading.Event()
    worker.post(lambda: torch.ones(1)).add_done_callback(lambda _: done.set())
    assert done.wait(20)
    worker.stop()


def test_a_signal_as_the_thread_starts_leaves_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    worker = _worker.Worker("one worker")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.post(lambda: torch.ones(1))
    done = threading.Event()
    worker.post(lambda: torch.ones(1)).add_done_callback(lambda _: done.set())
    assert done.wait(20)
    assert [thread.name for thread in threading.enumerate()].count("one worker") == 1
    worker.stop()


def test_a_finalizer_closes_the_worker_in_the_middle_of_a_post(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is collected at any time, on the thread that posts too."""
    start = threading.Thread.start

    def collects(thread: threading.Thread) -> None:
        start(thread)
        worker.close()

    worker = _worker.Worker("closed worker")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", collects)
        with pytest.raises(RuntimeError, match="closed worker was detached"):
            worker.post(lambda: torch.ones(1))
    worker.stop()
    assert not any(thread.name == "closed worker" for thread in threading.enumerate())
