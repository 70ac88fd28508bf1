# SPDX-License-Identifier: MIT
"""``bagua-net top``: what running processes show of their connections, in files that are never in a job's way."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bagua_net._cli import printing
from bagua_net._stats import causes, files, limits
from bagua_net._stats.files import Snapshot
from bagua_net._stats.lines import ORDERS, Line, chosen, of_processes
from tests.package import bench_command
from tests.package.running_jobs import SECONDS, command, job, own, until


def top(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return command(directory, "top", *options)


def shown(directory: Path, *options: str) -> list[dict[str, Any]]:
    done = top(directory, "--json", "--interval", "0.6", *options)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _check_80_columns(directory: Path, ranks: dict[int, int]) -> None:
    """Nothing is cut off or folded, as an IPv4 address, a rank of 512 and numbers of any size need."""
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "bagua_net", "top", "--once", "--interval", "0.6"],
        env=bench_command.environment(BAGUA_NET_STATS_DIR=str(directory), COLUMNS="80", TERM="xterm"),
        stdout=terminal,
        timeout=SECONDS,
    )
    os.close(terminal)
    table = re.sub(r"\x1b\[\d*m", "", os.read(controller, 65536).decode()).splitlines()
    os.close(controller)
    assert done.returncode == 0
    assert table[0].split() == ["PID", "RANK", "PEER", "STREAMS", "NOW", "P99", "RETR", "LIMIT"]
    assert {line.split()[0] for line in table[1:]} == {str(pid) for pid in ranks.values()}
    named = {(line.split()[0], line.split()[1], line.split()[3]) for line in table[1:]}
    assert named == {(str(pid), f"{rank}/2", "127.0.0.1") for rank, pid in ranks.items()}
    assert max(map(len, table)) <= 80 - len("511/512") + len("0/2")


def _check_choices(directory: Path, pid: int) -> None:
    """Of the lines, and what stands below them."""
    own = [each for each in shown(directory) if each["process"]["pid"] == pid]
    ports = {stream["local"].rpartition(":")[2] for each in own[0]["connections"] for stream in each["streams"]}
    table = top(directory, "--once", "--interval", "0.6", "--streams", "--filter", str(pid)).stdout.splitlines()
    streams = [line for line in table[1:] if line.startswith(" ")]
    assert {line.split()[0] for line in table[1:] if line not in streams} == {str(pid)}
    assert {line.split()[0].lstrip(":") for line in streams} == ports
    assert any("window " in line for line in streams)
    none = top(directory, "--once", "--interval", "0.6", "--filter", "no such text")
    assert len(none.stdout.splitlines()) == 1
    assert "lines has 'no such text' in a word" in none.stderr


def _communicators(process: dict[str, Any]) -> set[int]:
    return {each["communicator"] for each in process["connections"]} - {0}


def test_a_running_job(tmp_path: Path) -> None:
    with job(tmp_path) as ranks:
        until(lambda: all(_communicators(process) for process in shown(tmp_path)))
        found = shown(tmp_path)
        assert {process["process"]["pid"] for process in found} == set(ranks.values())
        for process in found:
            assert len(_communicators(process)) == 1  # the bench's group
            senders = [each for each in process["connections"] if each["sender"]]
            assert process["lives"]
            assert senders
            assert any(each["bytes_sent"] > 0 and each["bytes_per_second"] > 0 for each in senders)
            assert all(each["streams"][0]["remote"].startswith("127.0.0.1:") for each in senders)
        table = top(tmp_path, "--once", "--interval", "0.6").stdout.splitlines()
        assert table[0].split() == [*["PID", "RANK", "PEER", "STREAMS", "NOW", "MEAN", "P99", "RTT", "RETR", "LIMIT"]]
        assert {line.split()[0] for line in table[1:]} == {str(pid) for pid in ranks.values()}
        _check_80_columns(tmp_path, ranks)
        _check_choices(tmp_path, ranks[1])
        assert {each["limit"] for process in found for each in process["connections"]} <= {"", *limits.ALL}


@pytest.mark.gate
def test_what_was_killed_or_stopped(tmp_path: Path) -> None:
    with job(tmp_path, left_alone=True) as ranks:
        named = {str(rank): pid for rank, pid in ranks.items()}
        until(lambda: {each["process"]["rank"]: each["process"]["pid"] for each in shown(tmp_path)} == named)
        os.kill(ranks[0], signal.SIGSTOP)
        os.kill(ranks[1], signal.SIGKILL)
        until(lambda: [process["process"]["pid"] for process in shown(tmp_path)] == [ranks[0]])
        left = {process["process"]["pid"]: process["lives"] for process in shown(tmp_path, "--ended")}
        assert left == {ranks[0]: True, ranks[1]: False}


def test_a_process_that_ends_leaves_nothing(tmp_path: Path) -> None:
    done = bench_command.bench(
        "--transport", "bagua", "--max", "4K", *bench_command.QUICK, BAGUA_NET_STATS_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert list(own(tmp_path).iterdir()) == []


def test_without_any(tmp_path: Path) -> None:
    done = top(tmp_path, "--once")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "BAGUA_NET_STATS" in done.stderr
    assert shown(tmp_path) == []


def test_a_directory_of_something_else_is_one_line(tmp_path: Path) -> None:
    own(tmp_path).write_text("")
    done = top(tmp_path, "--once")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "not a directory of this user" in done.stderr


@pytest.mark.gate
def test_it_can_be_turned_off(tmp_path: Path) -> None:
    done = bench_command.bench(
        *["--transport", "bagua", "--max", "4K", *bench_command.QUICK],
        BAGUA_NET_STATS_DIR=str(tmp_path),
        BAGUA_NET_STATS="0",
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gate
@pytest.mark.parametrize("place", ["no directory", "a file", "another user's"])
def test_a_directory_that_cannot_be_used_is_no_obstacle(place: str, tmp_path: Path) -> None:
    directory = tmp_path / "stats"
    if place == "a file":
        directory.write_text("")
    elif place == "another user's":
        directory.mkdir()
        own(directory).mkdir(mode=0o777)
        own(directory).chmod(0o777)
    done = bench_command.bench(
        *["--transport", "bagua", "--max", "4K", *bench_command.QUICK], BAGUA_NET_STATS_DIR=str(directory)
    )
    assert done.returncode == 0, done.stderr
    if place == "another user's":
        assert list(own(directory).iterdir()) == []


@pytest.mark.gate
@pytest.mark.parametrize("options", ["size=300k", "size=64m,ro"])
def test_a_file_system_without_room_is_no_obstacle(options: str, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs root, or rights to mount a file system")
    bench = [sys.executable, "-m", "bagua_net", "bench", "--transport", "bagua", "--max", "4K", *bench_command.QUICK]
    mounted = f'mount -t tmpfs -o {options} none "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, "sh", str(tmp_path), *bench],
        env=bench_command.environment(BAGUA_NET_STATS_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_what_is_old_and_of_nobody_is_removed(tmp_path: Path) -> None:
    with job(tmp_path, left_alone=True) as ranks:
        until(lambda: len(shown(tmp_path)) == 2)
        os.kill(ranks[0], signal.SIGSTOP)  # else it would end with the other one
        os.kill(ranks[1], signal.SIGKILL)
        until(lambda: len(shown(tmp_path)) == 1)
        (left,) = [each.path for each in files.read_all(own(tmp_path)) if not each.lives]
        (lives,) = [each.path for each in files.read_all(own(tmp_path)) if each.lives]
        for path in (left, lives):
            os.utime(path, (1, 1))
        done = bench_command.bench(
            "--transport", "bagua", "--max", "4K", *bench_command.QUICK, BAGUA_NET_STATS_DIR=str(tmp_path)
        )
        assert done.returncode == 0, done.stderr
        assert list(own(tmp_path).iterdir()) == [lives]


# ---- the reader ----


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("stats")
    with job(directory):
        until(lambda: any(process["connections"] for process in shown(directory)))
        return files.read_all(own(directory))[0].path.read_bytes()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed")


def _use(snapshot: Snapshot, before: Snapshot | None) -> None:
    """As `top`, `explain` and `export` do."""
    rates = limits.rates(snapshot, before)
    assert {rate.limit for rate in rates} <= {"", *limits.ALL}
    for rate in rates:
        causes.of(rate, causes.Surroundings(rates))
    for order in ORDERS:
        chosen(of_processes([snapshot], {} if before is None else {before.path: before}), "", order)
    metrics = pytest.importorskip("bagua_net._stats.metrics").Metrics(lambda: [replace(snapshot, lives=True)])
    for _ in range(2):
        metrics.collect()


@pytest.mark.gate
@settings(max_examples=200)
@given(data=st.data())
def test_any_file_is_read_or_left_out(content: bytes, directory: Path, data: st.DataObject) -> None:
    """Bytes anywhere, most of them in the header and in the names of the fields."""
    changed = bytearray(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255)), max_size=8)):
        if at < len(changed):
            changed[at] = value
    directory.joinpath("1-a").write_bytes(changed)
    for snapshot in files.read_all(directory):
        for before in (None, snapshot):
            _use(snapshot, before)


@pytest.mark.gate
@settings(max_examples=200)
@given(data=st.data())
def test_any_numbers_can_be_shown(content: bytes, directory: Path, data: st.DataObject) -> None:
    """In the first row of each table, some fields of which have one of a few values."""
    numbers = data.draw(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from((2**31, 2**63, 2**64 - 1)), min_size=1))
    tables = files._schema(content).values()
    words = [at for table in tables for at in range(table.start + 16, table.start + table.size - 8, 8)]
    changed = bytearray(content)
    for at, which in zip(words, data.draw(st.binary(min_size=len(words), max_size=len(words))), strict=True):
        if which % 2:
            changed[at : at + 8] = numbers[which // 2 % len(numbers)].to_bytes(8, "little")
    file = directory.joinpath("1-a")
    file.write_bytes(content)
    (before,) = files.read_all(directory)
    file.write_bytes(changed)
    (now,) = files.read_all(directory)
    assert now.connections
    for earlier, later in ((None, now), (before, now), (now, before)):
        _use(later, earlier)


# ---- limits ----


def test_an_address_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Between its colons may stand what rich takes for the name of a picture."""
    printing.lines(printing.grid([("2001:db8:100:b::2",)]))
    assert capsys.readouterr().out == "2001:db8:100:b::2\n"


def test_the_order_of_lines() -> None:
    plain = Line("", "7", "10/16", True, "10.0.0.2", "1/1", 5.0, 4.0, 100.0, 50.0, 0.1, "network")
    other = replace(plain, pid="11", rank="9/16", peer="10.0.0.1", bytes_per_second=6.0, p99_us=math.inf, limit="idle")
    both = [other, plain]
    assert chosen(both, "", "") == both
    for order in ("pid", "retr"):
        assert chosen([other, replace(plain, retransmitted=0.2)], "", order)[0].pid == "7"
    for order in ("rank", "peer", "now", "p99"):
        assert chosen(both[::-1], "", order) == both
    assert chosen(both, "NETWORK", "") == [plain]


def _snapshot(at_us: int, connection: dict[str, int | str], stream: dict[str, int | str]) -> Snapshot:
    fixed: dict[str, int | str] = {"id": 7, "sender": 1, "level": 1, "opened_us": 0, "error": 0, "outstanding": 1}
    fixed |= {"published_us": at_us}
    of_stream: dict[str, int | str] = {"connection": 7, "sender": 1, "serial": 1, "rtt_us": 100}
    of_stream |= {"local": "10.0.0.1:5", "remote": "10.0.0.2:6"}
    return Snapshot(
        Path("x"), True, {"published_us": at_us}, (fixed | {"still_us": 0} | connection,), (of_stream | stream,)
    )


@pytest.mark.parametrize(
    ("posted", "busy", "rwnd", "sndbuf", "sent", "limit"),
    [
        (0.99, 0.97, 0.0, 0.0, 10**9, limits.NETWORK),
        (0.99, 0.97, 0.8, 0.0, 10**9, limits.RECEIVER),
        (0.99, 0.97, 0.0, 0.8, 10**9, limits.SEND_BUFFER),
        (0.99, 0.4, 0.0, 0.0, 10**9, limits.PROCESSOR),
        (0.4, 0.4, 0.0, 0.0, 10**9, limits.APPLICATION),
        (0.0, 0.0, 0.0, 0.0, 0, limits.IDLE),
    ],
)
def test_the_limit_by_the_counts(posted: float, busy: float, rwnd: float, sndbuf: float, sent: int, limit: str) -> None:
    before = _snapshot(10**6, {"posted_us": 5, "bytes_sent": 5}, {"busy_us": 5})
    now = _snapshot(
        2 * 10**6,
        {"posted_us": 5 + int(posted * 1e6), "bytes_sent": 5 + sent},
        {
            "busy_us": 5 + int(busy * 1e6),
            "rwnd_limited_us": int(rwnd * busy * 1e6),
            "sndbuf_limited_us": int(sndbuf * busy * 1e6),
        },
    )
    (rate,) = limits.rates(now, before)
    assert (rate.limit, rate.bytes) == (limit, sent)
