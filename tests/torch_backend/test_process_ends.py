# SPDX-License-Identifier: MIT
"""A process ends in the middle of things: by Ctrl-C, by a handler that destroys its group, while callbacks run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ranks as harness

_ENDS = """
import os, signal, sys, threading, time, torch
import torch.distributed as dist
import bagua_net.torch
from tests.torch_backend.inside import runs_in_the_library
rank, main = int(os.environ["RANK"]), threading.get_ident()
signal.signal(signal.SIGINT, signal.default_int_handler)
dist.init_process_group("bagua_net", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
dist.barrier()

def interrupt():
    while not runs_in_the_library(main):
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGINT)

if rank == 0:
    threading.Thread(target=interrupt).start()
while True:
    dist.all_reduce(torch.ones(3))
"""


def _process(code: str, directory: Path, rank: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(directory / "store")],
        env=harness.environment({"RANK": str(rank)}),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.gate
def test_a_process_that_ctrl_c_ends(tmp_path: Path) -> None:
    """Nothing keeps it, or the other rank, from ending."""
    processes = [_process(_ENDS, tmp_path, rank) for rank in range(2)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [-signal.SIGINT, 1], said
    assert said[0].rstrip().endswith("KeyboardInterrupt")
    assert "DistBackendError: bagua_net, group" in said[1]


_DESTROYS = """
import contextlib, os, signal, sys, threading, time, torch
import torch.distributed as dist
import bagua_net.torch
from tests.torch_backend.inside import runs_in_the_library, waits_for_an_operation
rank, main, callbacks = int(os.environ["RANK"]), threading.get_ident(), []
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("bagua_net", store=store, rank=rank, world_size=2)
dist.barrier()
sums = torch.ones(3), torch.ones(3)

def destroy(*_):
    dist.group.WORLD.shutdown()
    store.set("destroyed", "1")

def interrupt():
    while not callbacks or not waits_for_an_operation(callbacks[0]):
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGWINCH)

def callback(_):
    while not runs_in_the_library(main):
        time.sleep(0.001)
    callbacks.append(threading.get_ident())
    dist.all_reduce(sums[1])

if rank == 0:
    signal.signal(signal.SIGWINCH, destroy)
    threading.Thread(target=interrupt).start()
    future = dist.irecv(torch.zeros(1), 1).get_future().then(callback)
    store.set("attached", "1")
    with contextlib.suppress(RuntimeError):  # where it had not begun
        dist.all_reduce(sums[0])
        future.wait()
else:
    store.wait(["attached"])  # what is attached to a finished operation runs at once, on the caller's thread
    dist.send(torch.ones(1), 0)
    store.wait(["destroyed"])
    with contextlib.suppress(RuntimeError):
        for each in sums:
            dist.all_reduce(each)
"""


@pytest.mark.nightly
def test_a_handler_destroys_the_group_while_a_callback_waits_in_it(tmp_path: Path) -> None:
    """The callback waits for the operation that the handler interrupts."""
    processes = [_process(_DESTROYS, tmp_path, rank) for rank in range(2)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said


_ENDS_ITS_GROUP = """
import os, sys, threading, time, torch
import torch.distributed as dist
import bagua_net.torch
rank = int(os.environ["RANK"])
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("bagua_net", store=store, rank=rank, world_size=2)
dist.barrier()
ended = threading.Event()

def callback(_):
    dist.group.WORLD.shutdown()
    ended.set()
    time.sleep(0.5)
    print("over", file=sys.stderr, flush=True)

if rank == 0:
    future = dist.irecv(torch.zeros(1), 1).get_future().then(callback)
    store.set("attached", "1")
    ended.wait()
else:
    store.wait(["attached"])  # what is attached to a finished operation runs at once, on the caller's thread
    dist.send(torch.ones(1), 0)
"""


@pytest.mark.gate
def test_the_interpreter_waits_for_a_callback_that_has_ended_its_group(tmp_path: Path) -> None:
    """It is in the middle of torch's C++, which would abort the process."""
    processes = [_process(_ENDS_ITS_GROUP, tmp_path, rank) for rank in range(2)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "over" in said[0]


_ENDS_WITHIN_CALLBACKS = """
import os, sys, threading, torch
import torch.distributed as dist
import bagua_net.torch
rank = int(os.environ["RANK"])
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("bagua_net", store=store, rank=rank, world_size=2)
groups = [dist.new_group() for _ in range(3)]
began = [threading.Event() for _ in groups]

def callback(number):
    def run(_):
        began[number].set()
        dist.all_reduce(torch.ones(3), group=groups[number - 1])
    return run

if rank == 1:
    store.wait(["attached"])  # what is attached to a finished operation runs at once, on the caller's thread
works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for group in groups]
if rank == 0:
    futures = [work.get_future().then(callback(number)) for number, work in enumerate(works)]
    store.set("attached", "1")
    for each in began:
        each.wait()
else:
    for work in works:
        work.wait()
    sys.stdin.read()
    os._exit(0)
"""


@pytest.mark.nightly
def test_the_interpreter_exits_while_callbacks_wait_in_each_others_groups(tmp_path: Path) -> None:
    first, other = [_process(_ENDS_WITHIN_CALLBACKS, tmp_path, rank) for rank in range(2)]
    try:
        first.wait(60)
    finally:
        other.communicate(timeout=60)
        first.kill()
        first.communicate()
    assert other.returncode == 0
