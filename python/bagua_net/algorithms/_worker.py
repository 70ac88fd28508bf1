# SPDX-License-Identifier: MIT
"""Where an algorithm's collectives run: in the order of the posts, beside backward."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import torch

_Call = Callable[[], torch.Tensor]
_Outcome = tuple[torch.Tensor | None, BaseException | None]
_Calls = queue.SimpleQueue["tuple[_Call, torch.futures.Future[_Outcome]] | None"]


#: The threads of all workers, and what each takes its calls from.
_running: dict[threading.Thread, _Calls] = {}
#: Seconds that the end of the process waits for a thread, which may wait for another rank, or for a busy processor.
PATIENCE_S = 5.0


class Runner(Protocol):
    """Runs calls one after the other. Nothing is recorded for autograd."""

    @property
    def failed(self) -> bool:
        """A call has failed."""

    def post(self, call: _Call) -> torch.futures.Future[torch.Tensor]:
        """The future of its result, or of its exception. After a call has failed, all later ones fail likewise: the
        ranks no longer agree on what comes next."""

    def stop(self) -> None:
        """Waits for all that was posted, and ends. Later posts fail."""

    def close(self) -> None:
        """Ends once all that was posted is over, without waiting for it."""


class _Thread(threading.Thread):
    #: Somebody, at this time. It never starts an operation of its own: see ``torch/_blocked.py``.
    serves = False


class Worker:
    """A thread, for tensors of the CPU. It starts with the first post, and keeps nothing alive but what was posted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # a finalizer may close this worker in the middle of a post
        self._calls: _Calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._failures: list[BaseException] = []  # the first one, for later calls

    @property
    def failed(self) -> bool:
        return bool(self._failures)

    def post(self, call: _Call) -> torch.futures.Future[torch.Tensor]:
        over: torch.futures.Future[_Outcome] = torch.futures.Future()
        future = over.then(_result)
        with self._lock:
            if not self._stopped:
                if self._thread is None:
                    self._start()
                self._calls.put((call, over))
            if self._stopped:  # perhaps since a moment ago, and nothing runs the call
                raise RuntimeError(f"bagua_net.algorithms: {self._name} was detached")
        return future

    def _start(self) -> None:
        """Raises RuntimeError: no thread can start. A later post tries it again."""
        thread = _Thread(target=_run, args=(self._calls, self._failures), name=self._name, daemon=True)
        _running[thread] = self._calls  # before it may end
        self._thread = thread  # before a signal handler may raise: one thread is enough
        try:
            thread.start()
        except RuntimeError:
            self._thread = None
            _running.pop(thread)
            raise

    def stop(self) -> None:
        self.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._calls.put(None)


def _run(calls: _Calls, failures: list[BaseException]) -> None:
    this = threading.current_thread()
    while (item := calls.get()) is not None:
        this.serves = True  # type: ignore[attr-defined]
        call, over = item
        over.set_result(_outcome(call, failures))
        del item, call, over  # they hold gradients
        this.serves = False  # type: ignore[attr-defined]
    _running.pop(threading.current_thread(), None)


def awaited(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    """The result of a runner, whose exception it raises. ``torch/_blocked.py`` knows this function by its name: who is
    in it waits for a thread of this process."""
    return future.wait()


@atexit.register
def _end_all() -> None:
    """Python ends a daemon thread that comes back from C++ during the shutdown, and C++ then aborts the process."""
    running = dict(_running)
    for calls in running.values():
        calls.put(None)
    for thread in running:
        if thread.is_alive():  # another thread may be about to start it
            thread.join(PATIENCE_S)


def _outcome(call: _Call, failures: list[BaseException]) -> _Outcome:
    try:
        if failures:
            raise RuntimeError(f"an earlier collective of this model has failed: {failures[0]}")
        with torch.no_grad():
            return call(), None
    except BaseException as error:  # whatever it is, it belongs to the caller that waits for the future
        failures.append(error)
        return None, error


def _result(over: torch.futures.Future[_Outcome]) -> torch.Tensor:
    """Raises where the call did. C++, such as DDP's reducer, sees what a callback raises, and takes what
    ``Future.set_exception`` was given for the value."""
    result, error = over.value()
    if result is None:
        raise RuntimeError(str(error)) from error
    return result


class Stream:
    """A CUDA stream: calls are issued at once, in the order of the posts, and run on the device beside backward."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._failures: list[BaseException] = []
        self._stopped = False

    @property
    def failed(self) -> bool:
        return bool(self._failures)

    def post(self, call: _Call) -> torch.futures.Future[torch.Tensor]:
        if self._stopped:
            raise RuntimeError("bagua_net.algorithms: the algorithm was detached")
        over: torch.futures.Future[_Outcome] = torch.futures.Future(devices=[self._device])
        future = over.then(_result)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            outcome = _outcome(call, self._failures)
            if outcome[0] is not None and outcome[0].is_cuda:  # calls on the host's memory are over by now
                outcome[0].record_stream(self._stream)
            over.set_result(outcome)  # records the stream's work so far: a wait for the future includes it
        return future

    def stop(self) -> None:
        self._stopped = True
        self._stream.synchronize()

    def close(self) -> None:
        self._stopped = True
