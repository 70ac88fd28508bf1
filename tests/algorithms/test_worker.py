# SPDX-License-Identifier: MIT
"""The thread that runs an algorithm's collectives, when the process ends."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_process_that_ends_at_once_is_not_aborted() -> None:
    """A thread that comes back from C++ while Python shuts down is ended there, which C++ does not survive."""
    done = subprocess.run([sys.executable, "-c", _ENDS_AT_ONCE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")
