# SPDX-License-Identifier: MIT
"""``bagua-net status``: where settings come from, and which processes have the plugin loaded."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bagua_net
from tests.package.sandbox import REFUSED, Sandbox
from tests.support import nccl_wheels
from tests.support.tiers import variants

LIBRARY = str(bagua_net.plugin_path())


def test_status_names_the_layer(sandbox: Sandbox) -> None:
    off = sandbox.run("status", "--json")
    assert off.returncode == 1
    assert json.loads(off.stdout)["on"] is False
    sandbox.run("enable")
    on = sandbox.run("status", "--json", BAGUA_NET_NSTREAMS="8")
    found = json.loads(on.stdout)
    assert on.returncode == 0
    assert found["plugin"] == {"name": "NCCL_NET_PLUGIN", "value": str(sandbox.copy), "layer": str(sandbox.confs[0])}
    assert {"name": "BAGUA_NET_NSTREAMS", "value": "8", "layer": "environment"} in found["parameters"]
    overruled = sandbox.run("status", NCCL_NET_PLUGIN="none")
    assert overruled.returncode == 1
    assert "NCCL_NET_PLUGIN=none (environment)" in overruled.stdout
    assert sandbox.run("status", NCCL_CONF_FILE=str(sandbox.root / "absent.conf")).returncode == 1


def test_status_tells_that_the_library_is_gone(sandbox: Sandbox) -> None:
    sandbox.run("enable")
    sandbox.copy.unlink()
    done = sandbox.run("status")
    assert done.returncode == 1
    assert f"{sandbox.copy} ({sandbox.confs[0]}) does not exist" in done.stdout


def test_status_says_how_to_mend_what_each_layer_sets(sandbox: Sandbox) -> None:
    gone = str(sandbox.root / "gone" / "libnccl-net-bagua.so")
    text = f"NCCL_NET_PLUGIN={gone}\nNCCL_NET=BaguaNet\n"
    named = sandbox.root / "named.conf"
    named.write_text(text)
    sandbox.system_conf.write_text(text)
    by_all = sandbox.run("status").stdout
    by_name = sandbox.run("status", NCCL_CONF_FILE=str(named)).stdout
    by_variables = sandbox.run("status", NCCL_NET_PLUGIN=gone, NCCL_NET="BaguaNet").stdout
    assert "does not exist; `bagua-net enable --system` again, or `bagua-net disable --system`" in by_all
    assert f"does not exist; `bagua-net enable --conf {named}` again, or `bagua-net disable --conf {named}`" in by_name
    assert f"{gone} (environment) does not exist; unset NCCL_NET_PLUGIN\n" in by_variables


@pytest.mark.parametrize("name", ["bagua", "libnccl-net-bagua.so"])
def test_status_looks_for_a_bare_name_as_the_linker_does(sandbox: Sandbox, name: str) -> None:
    missing = sandbox.run("status", NCCL_NET_PLUGIN=name)
    assert missing.returncode == 1
    assert "no libnccl-net-bagua.so on LD_LIBRARY_PATH" in missing.stdout
    assert sandbox.run("status", NCCL_NET_PLUGIN=name, LD_LIBRARY_PATH=str(Path(LIBRARY).parent)).returncode == 0


@pytest.mark.gate
def test_status_knows_that_an_old_nccl_takes_no_path(sandbox: Sandbox) -> None:
    settings = sandbox.with_nccl(nccl_wheels.library("2.18.3"))
    off = sandbox.run("status", **settings, NCCL_NET_PLUGIN=LIBRARY)
    assert (off.returncode, "takes no path" in off.stdout) == (1, True)
    assert sandbox.run("run", sys.executable, "-m", "bagua_net", "status", **settings).returncode == 0


@pytest.mark.parametrize(("version", "home"), variants(("2.30.7", 0), gate=[("2.21.5", 1)]))
def test_status_reads_the_home_that_this_nccl_reads(sandbox: Sandbox, version: str, home: int) -> None:
    settings = sandbox.with_nccl(nccl_wheels.library(version))
    sandbox.run("enable", **settings)
    found = json.loads(sandbox.run("status", "--json", **settings).stdout)
    assert found["plugin"]["layer"] == str(sandbox.confs[home])
    assert found["nccl"]["version"] == version


@contextmanager
def loaded(*arguments: str, then: str = "", library: str = LIBRARY) -> Iterator[int]:
    """The pid of another process that has the library loaded, has run more code, and has these arguments."""
    load, wait = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1])", "print('loaded', flush=True); sys.stdin.read()"
    hold = "\n".join([load, then, wait])
    command = [sys.executable, "-c", hold, library, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "loaded\n"
        yield job.pid
        job.communicate(timeout=30)


def on_terminal(sandbox: Sandbox, *arguments: str, columns: int) -> list[str]:
    """The lines that ``bagua-net ARGUMENTS`` writes to a terminal of this width, without colours."""
    ours, theirs = os.openpty()
    settings = {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    with os.fdopen(ours, "rb", buffering=0) as screen, sandbox.start(*arguments, stdout=theirs, **settings):
        os.close(theirs)
        text = b"".join(iter(lambda: _read_terminal(screen.fileno()), b""))
    return text.decode().splitlines()


def _read_terminal(fd: int) -> bytes:
    """A terminal without a writer ends with EIO."""
    try:
        return os.read(fd, 1 << 16)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def test_status_lists_the_processes_that_have_it_loaded(sandbox: Sandbox) -> None:
    with loaded() as pid:
        found = json.loads(sandbox.run("status", "--json").stdout)["processes"]
        assert [one for one in found if one["pid"] == pid and one["library"] == os.path.realpath(LIBRARY)]
    found = json.loads(sandbox.run("status", "--json").stdout)["processes"]
    assert not [one for one in found if one["pid"] == pid]


def test_status_gives_each_process_one_line(sandbox: Sandbox) -> None:
    script = "first\nsecond\x1b[31m" + "x" * 5000
    with loaded(script) as pid:
        wide = on_terminal(sandbox, "status", columns=400)
        narrow = on_terminal(sandbox, "status", columns=20)
        whole = json.loads(sandbox.run("status", "--json").stdout)["processes"]
    (line,) = [line for line in wide if line.startswith(str(pid))]
    assert "first second [31mxxx" in line
    assert "x…" in line
    assert line.endswith(os.path.realpath(LIBRARY))
    assert max(map(len, wide)) <= 400
    assert len([line for line in narrow if line.startswith(str(pid))]) == 1
    assert next(one for one in whole if one["pid"] == pid)["command"].endswith(script)


def test_another_users_directory_says_nothing_to_the_terminal(sandbox: Sandbox) -> None:
    odd = sandbox.root / "a\x1b[31mb" / "libnccl-net-bagua.so"
    odd.parent.mkdir()
    shutil.copyfile(LIBRARY, odd)
    with loaded(library=str(odd)) as pid:
        (line,) = [line for line in on_terminal(sandbox, "status", columns=400) if line.startswith(str(pid))]
    assert line.endswith("a [31mb/libnccl-net-bagua.so")


def test_status_says_off_that_a_process_loaded_it_all_the_same(sandbox: Sandbox) -> None:
    with loaded("x" * 5000) as pid:
        off = sandbox.run("status").stdout.splitlines()
        sandbox.run("enable")
        on = sandbox.run("status").stdout.splitlines()
    assert "loaded by (started with `run`, `activate()`, or the CPU backend):" in off
    assert "loaded by:" in on
    (line,) = [line for line in off if line.startswith(str(pid))]
    assert len(line) < 100 + len(os.path.realpath(LIBRARY)) + 20
    assert "…" in line


@pytest.mark.gate
def test_status_is_off_where_the_plugin_would_refuse_a_value(sandbox: Sandbox) -> None:
    sandbox.run("enable")
    assert sandbox.run("status").returncode == 0
    refused = sandbox.run("status", BAGUA_NET_NSTREAMS="999")
    assert refused.returncode == 1
    problem = f"a job would end with an error: {REFUSED}"
    assert refused.stdout.startswith(f"off for jobs started from this shell: {problem}\n")
    assert json.loads(sandbox.run("status", "--json", BAGUA_NET_NSTREAMS="999").stdout)["on"] is False


@pytest.mark.gate
def test_status_shows_the_processes_of_others_only_when_asked(sandbox: Sandbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to have a process of another user's")
    become = "os.setuid(12345); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)"  # and, by PR_SET_DUMPABLE, its owner in /proc
    with loaded(then=become) as pid:
        own, everyones = (sandbox.run("status", *flag).stdout for flag in ([], ["--all"]))
        found = json.loads(sandbox.run("status", "--json").stdout)["processes"]
    (one,) = [one for one in found if one["pid"] == pid]
    assert one["uid"] == 12345
    assert not [line for line in own.splitlines() if line.startswith(str(pid))]
    assert "of other users: " in own
    assert [line for line in everyones.splitlines() if line.startswith(str(pid))]
