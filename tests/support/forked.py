# SPDX-License-Identifier: MIT
"""Python programs that start in milliseconds: forks of a template, a process that has done their imports.

    template = Template("torch", environment=environment, free="RANK|WORLD_SIZE")
    process = template.popen([sys.executable, "-m", "tests.FOLDER.NAME"], env=environment() | {"RANK": "1"})

A fork has its own arguments, environment, directory and descriptors, runs the program as ``__main__``, and ends as an
interpreter does. All forks share what an interpreter draws at its start: the seed of hashes, addresses. A program that
the template does not suit is started as usual: where a variable differs that is not free, or where a directory that is
added to PYTHONPATH has a module that the template has imported.

The template starts with its first use. It ends with the process that uses it, however that ends: its socket closes.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import programs

_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 64
#: Every interpreter imports them at its start, where they exist.
_AT_START = {"sitecustomize", "usercustomize"}


class Template:
    def __init__(
        self, *modules: str, environment: Callable[[], dict[str, str]], free: str, quick_end: bool = False
    ) -> None:
        """
        Args:
            modules: the template imports those that are installed. None may start a thread.
            environment: the template's.
            free: a regular expression: the names of variables that are read neither by an interpreter at its start nor
                by these modules when they are imported.
            quick_end: the forks end without a search for garbage among what the template has made.
        """
        self.modules = modules
        self._quick_end = quick_end
        self._environment = environment
        self._free = re.compile(f"{free}|PYTEST_CURRENT_TEST")
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def is_free(self, name: str) -> bool:
        """May each fork have its own value of this variable?"""
        return self._free.fullmatch(name) is not None

    def popen(self, command: Sequence[str], *, env: Mapping[str, str], **streams: Any) -> subprocess.Popen[Any]:
        """``subprocess.Popen(command, env=env, **streams)`` for ``python -c CODE …`` or ``python -m MODULE …``.

        Args:
            streams: of Popen's arguments stdin, stdout, stderr, text, pass_fds and cwd.
        """
        with self._lock:
            if self._server is None:
                self._server = _Server(self.modules, self._environment(), self._quick_end)
        if self._fixed(env) == self._fixed(self._server.environment) and self._server.suits(env):
            return _Forked(self._server, command, env=env, **streams)
        return subprocess.Popen(command, env=env, **streams)

    def _fixed(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if not self.is_free(name) and name != "PYTHONPATH"}


class _Server:
    """The template's process, for those that use it."""

    def __init__(self, modules: Sequence[str], environment: dict[str, str], quick_end: bool) -> None:
        self.environment = environment
        self._lock = threading.Lock()
        self._requests = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(int(quick_end)), *modules],
                env=environment,
                cwd=programs.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)
        #: Packages and modules at the top; nothing if the template cannot fork here, for a reason that it has printed.
        self._imported = set(json.loads(self._socket.recv(_MOST_BYTES) or "[]"))

    def _end(self) -> None:
        self._process.kill()  # it has nothing to do at its end
        self._process.wait()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """May its PYTHONPATH differ from the template's as it does?"""
        added = self.added(environment)
        if not self._imported or added is None:
            return False
        files = [file.name.partition(".")[0] for path in map(Path, added) if path.is_dir() for file in path.iterdir()]
        return not (self._imported | _AT_START).intersection(files)

    def added(self, environment: Mapping[str, str]) -> list[str] | None:
        """The entries of PYTHONPATH in front of the template's; None where it does not end with those."""
        ours, theirs = (
            list(filter(None, each.get("PYTHONPATH", "").split(os.pathsep))) for each in (self.environment, environment)
        )
        count = len(theirs) - len(ours)
        return theirs[:count] if count >= 0 and theirs[count:] == ours else None

    def ask(self, descriptors: Sequence[int] = (), **request: Any) -> tuple[dict[str, int], list[int]]:
        """The answer, and the descriptors that come with it."""
        with self._lock:
            self._requests += 1
            message = json.dumps(request | {"number": self._requests}).encode()
            socket.send_fds(self._socket, [message], descriptors)
            while answer := socket.recv_fds(self._socket, _MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC):
                told, received = json.loads(answer[0] or "null"), answer[1]
                if told is None:
                    break
                if told["number"] == self._requests:
                    return told, received
                for descriptor in received:  # of a request that an exception in a signal handler has cut short
                    os.close(descriptor)
        raise ChildProcessError(f"this template has ended: {self._process.args!r}")


class _Forked(subprocess.Popen[Any]):
    """A child of the template. The methods are those by which Popen starts a process and learns of its end: they are
    not documented, but the same in Python 3.10 to 3.13."""

    def __init__(self, server: _Server, command: Sequence[str], **streams: Any) -> None:
        self._server = server
        super().__init__(command, **streams)

    def _execute_child(self, *arguments: Any) -> None:
        command, _, _, _, pass_fds, cwd, env, _, _, _, *pipes = arguments[:16]
        stdin, _, _, stdout, _, stderr = pipes
        streams = [number if given == -1 else given for number, given in enumerate((stdin, stdout, stderr))]
        told, (self._ending,) = self._server.ask(
            [*streams, *pass_fds],
            command=list(command),
            environment=dict(env),
            added=self._server.added(env),
            directory=str(cwd or Path.cwd()),
            numbers=[0, 1, 2, *pass_fds],
        )
        self.pid = told["pid"]
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._ending)
            if not poll.poll(None if timeout is None else max(0.0, timeout) * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:  # until the template is asked, no other process gets the number
                self.returncode = self._server.ask(ended=self.pid)[0]["status"]
                os.close(self._ending)
        return self.returncode


# ---- in the template, and in its forks ----


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns in each fork, with its request."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            sys.exit()
        request = json.loads(message)
        answer, passed = {"number": request["number"]}, []
        if "ended" in request:
            answer["status"] = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
        else:
            answer["pid"] = os.fork()
            if answer["pid"] == 0:
                return request, descriptors
            passed = [os.pidfd_open(answer["pid"])]
        for descriptor in descriptors:
            os.close(descriptor)
        socket.send_fds(control, [json.dumps(answer).encode()], passed)
        for descriptor in passed:
            os.close(descriptor)


def _place(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Gives descriptors these numbers, some of which may be other descriptors' so far."""
    above = max(*descriptors, *numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _renew_streams() -> None:
    """The objects stay, since modules have kept them. They know of the template's files whether these can seek."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        plain = number > 0 and stream.write_through  # type: ignore[union-attr]
        stream.__init__(  # type: ignore[misc]
            open(number, "wb" if number else "rb", 0 if plain else -1, closefd=False),  # noqa: SIM115
            stream.encoding,
            stream.errors,
            newline="\n" if number else None,
            line_buffering=not plain and (number == 2 or os.isatty(number)),
            write_through=plain,
        )


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Makes this process as one that was started with the request."""
    _place(descriptors, request["numbers"])
    _renew_streams()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _, option, _, *arguments = sys.orig_argv[:] = request["command"]
    sys.argv[:] = [option, *arguments]
    sys.path[:1] = ["" if option == "-c" else str(Path.cwd()), *request["added"]]
    importlib.invalidate_caches()


def _run(option: str, what: str) -> None:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if option == "-c":
        exec(compile(what, "<string>", "exec"), main.__dict__)
    else:
        runpy._run_module_as_main(what)  # type: ignore[attr-defined]


def _obstacle() -> str | None:
    """Why this process cannot be a template."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return "a module has started a thread"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:  # older than Linux 5.3, or not allowed in a container
        return f"pidfd_open: {error}"
    return None


def _main(descriptor: int, quick_end: bool, modules: Sequence[str]) -> None:
    for module in modules:
        with contextlib.suppress(ImportError):  # the program says it better, if it needs the module
            importlib.import_module(module)
    if reason := _obstacle():
        sys.exit(f"programs are not forked from a template with {', '.join(modules)}: {reason}")
    if quick_end:
        gc.collect()
        gc.freeze()
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal; those that use the forks end them
    with socket.socket(fileno=descriptor) as control:
        control.send(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})).encode())
        request, descriptors = _serve(control)
    signal.signal(signal.SIGINT, interrupt)
    _become(request, descriptors)
    _run(*request["command"][1:3])


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:])
