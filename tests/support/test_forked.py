# SPDX-License-Identifier: MIT
"""A fork of a template does what an interpreter does that has been started for the same command."""

from __future__ import annotations

import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked, programs

_SECONDS = 60
#: A module that no interpreter imports at its start.
_IMPORTED = "colorsys"
_PIPE = subprocess.PIPE
#: What a program can see of its start.
_REPORT = """
import faulthandler, json, os, signal, subprocess, sys
streams = (sys.stdin, sys.stdout, sys.stderr)
print(json.dumps({
    "environment": dict(os.environ),
    "C's environment": str(sorted(subprocess.run(["env", "-0"], capture_output=True).stdout.split(b"\\0"))),
    "directory": os.getcwd(),
    "arguments": [sys.argv, sys.orig_argv, sys.path],
    "main": [__name__, sys.modules["__main__"].__dict__ is globals(), __spec__ is None],
    "descriptors": sorted(int(number) for number in os.listdir("/proc/self/fd")),
    "streams": [
        [each.encoding, each.errors, each.newlines, each.line_buffering, each.seekable(), each.isatty(), each.fileno()]
        for each in streams
    ],
    "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals()) if each not in (9, 19)][:31],
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "ids": [os.getpgid(0), os.getsid(0), os.getuid()],
    "limits": open("/proc/self/limits").read(),
    "faulthandler": faulthandler.is_enabled(),
    "flags": str(sys.flags),
}, indent=1))
"""


def _environment(*path: Path) -> dict[str, str]:
    """These directories are first on PYTHONPATH."""
    entries = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(entries)}


@pytest.fixture(scope="module")
def template() -> forked.Template:
    made = forked.Template(
        _IMPORTED, environment=lambda: _environment() | {"FAREWELL": "the template's"}, free="GREETING|FAREWELL"
    )
    if not _is_forked(made):
        pytest.skip("this machine has no pidfd_open, and programs are not forked")
    return made


def _is_forked(template: forked.Template, **variables: str) -> bool:
    """Is a program with these variables?"""
    code = f"import sys; print({_IMPORTED!r} in sys.modules)"
    return _run(template.popen, code, env=_environment() | variables)[1] == "True\n"


def _run(start: Callable[..., subprocess.Popen[Any]], code: str, **others: Any) -> tuple[int, str, str]:
    command = [sys.executable, "-c", code, "one", "two words"]
    streams = {"stdin": subprocess.DEVNULL, "stdout": _PIPE, "stderr": _PIPE}
    with start(command, text=True, **(streams | {"env": _environment()} | others)) as process:
        out, err = process.communicate(timeout=_SECONDS)
    return process.returncode, out, err


@pytest.mark.parametrize("option", ["-c", "-m"])
@pytest.mark.parametrize("stdout", ["pipe", "file"])
def test_a_program_sees_the_start_that_it_would_have_seen(
    template: forked.Template, option: str, stdout: str, tmp_path: Path
) -> None:
    (tmp_path / "report.py").write_text(_REPORT)
    reports = []
    for start in (template.popen, subprocess.Popen):
        with (tmp_path / "out").open("wb") as file:
            process: subprocess.Popen[Any] = start(
                [sys.executable, option, "report" if option == "-m" else _REPORT, "--more"],
                env=_environment(tmp_path) | {"GREETING": "hallo \udce4"},
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=file if stdout == "file" else _PIPE,
                stderr=_PIPE,
            )
            out, err = process.communicate(timeout=_SECONDS)
        assert (process.returncode, err) == (0, b"")
        reports.append(json.loads(out or (tmp_path / "out").read_bytes()))
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "raise SystemExit(3)",
        "import sys; sys.exit('refused')",
        "import os; os._exit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "import sys; print('a', end=''); print('b', file=sys.stderr)",
        "import sys; print(sys.stdin.read())",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
        "import atexit; atexit.register(print, 'at the end')",
        "class A:\n    def __del__(self, print=print): print('deleted')\na = A(); a.itself = a",
        "import sys; sys.excepthook = lambda kind, *_: print(kind); raise ValueError",
    ],
)
def test_a_program_ends_as_it_would_have_ended(template: forked.Template, code: str) -> None:
    status, out, err = _run(template.popen, code)
    without_frames = re.sub(r'  File "(?!<string>).*\n(    .*\n)*', "", err)
    expected = _run(subprocess.Popen, code)
    assert (status, out, without_frames) == (expected[0], expected[1], re.sub(r"\n    [^\n]*(?=\n)", "", expected[2]))


def test_an_exception_is_shown(template: forked.Template) -> None:
    status, _, err = _run(template.popen, "def f():\n    raise ValueError('why')\nf()")
    assert status == 1
    assert 'File "<string>", line 2, in f\n' in err
    assert err.endswith("ValueError: why\n")


def test_descriptors_keep_their_numbers(template: forked.Template) -> None:
    pipes = [os.pipe() for _ in range(3)]
    ends = [write for _, write in reversed(pipes)]
    code = f"import os\nfor number in {ends}: os.write(number, str(number).encode())"
    assert _run(template.popen, code, pass_fds=ends)[0] == 0
    for read, write in pipes:
        os.close(write)
        assert os.read(read, 100) == str(write).encode()
        os.close(read)


def test_descriptors_may_change_places(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    descriptors = [os.open(tmp_path / name, os.O_RDONLY) for name in "ab"]
    forked._place(descriptors, descriptors[::-1])
    assert [os.read(descriptor, 9) for descriptor in descriptors] == [b"b", b"a"]
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_module_that_was_imported_is_not_used_for_another_one(template: forked.Template, tmp_path: Path) -> None:
    (tmp_path / f"{_IMPORTED}.py").write_text("print('mine')")
    assert _run(template.popen, f"import {_IMPORTED}", env=_environment(tmp_path))[1] == "mine\n"


def test_every_start_looks_for_a_sitecustomize(template: forked.Template, tmp_path: Path) -> None:
    assert _is_forked(template, PYTHONPATH=_environment(tmp_path)["PYTHONPATH"])
    (tmp_path / "sitecustomize.py").write_text("print('first')")
    assert _run(template.popen, "pass", env=_environment(tmp_path))[1] == "first\n"


def test_only_free_variables_may_differ(template: forked.Template) -> None:
    assert _is_forked(template, GREETING="hallo")
    for name in ("GREETINGS", "PYTHONIOENCODING", "LD_LIBRARY_PATH"):
        assert not _is_forked(template, **{name: "ascii"})


def test_it_can_be_awaited_and_ended(template: forked.Template) -> None:
    with template.popen([sys.executable, "-c", "input()"], env=_environment(), stdin=_PIPE) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGSTOP)
        process.kill()
        assert process.wait(_SECONDS) == process.poll() == -signal.SIGKILL
        process.kill()  # not the process that may have its number now
    assert not Path("/proc", str(process.pid)).exists()


def test_an_interrupt_from_a_terminal_leaves_the_template(template: forked.Template) -> None:
    """It reaches all processes of the group."""
    parent = int(_run(template.popen, "import os; print(os.getppid())")[1])
    assert parent != os.getpid()
    os.kill(parent, signal.SIGINT)
    assert int(_run(template.popen, "import os; print(os.getppid())")[1]) == parent


_USES = f"""
import os, sys
from tests.support import forked
template = forked.Template({_IMPORTED!r}, environment=lambda: dict(os.environ), free="GREETING")
code = "import os; print(os.getppid(), flush=True)"
template.popen([sys.executable, "-c", code], env=os.environ).wait()
input()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_template_ends_with_its_user(template: forked.Template, killed: bool) -> None:
    command = [sys.executable, "-c", _USES]
    path = _environment() | {"PYTHONPATH": programs.search_path()}
    with subprocess.Popen(command, env=path, stdin=_PIPE, stdout=_PIPE, text=True) as user:
        assert user.stdin is not None
        assert user.stdout is not None
        ending = os.pidfd_open(int(user.stdout.readline()))
        if killed:
            user.kill()
        else:
            user.stdin.write("\n")
            user.stdin.flush()
        assert user.wait(_SECONDS) == (-signal.SIGKILL if killed else 0)
        assert select.select([ending], [], [], _SECONDS)[0] == [ending]
    os.close(ending)


_READ = """
import importlib, json, os, sys, sysconfig
sysconfig.get_config_vars()  # it notes where "pip install --user" would install
names = set()
get = type(os.environ).__getitem__
type(os.environ).__getitem__ = lambda self, name: (names.add(name), get(self, name))[1]
for module in sys.argv[1:]:
    importlib.import_module(module)
print(json.dumps(sorted(names)))
"""


@pytest.mark.parametrize("user", ["tests.package.sandbox", pytest.param("tests.support.ranks", marks=pytest.mark.gate)])
def test_no_import_reads_a_free_variable(user: str) -> None:
    if user == "tests.support.ranks":
        pytest.importorskip("torch", reason="torch is not installed")
    template: forked.Template = importlib.import_module(user).TEMPLATE
    modules = [name for name in template.modules if _is_there(name)]
    fixed = {name: value for name, value in _environment().items() if not template.is_free(name)}
    done = subprocess.run(
        [sys.executable, "-c", _READ, *modules],
        env=fixed | {"PYTHONPATH": programs.search_path()},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    read = json.loads(done.stdout)
    assert read  # the record works
    assert [name for name in read if template.is_free(name)] == []


def _is_there(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True
