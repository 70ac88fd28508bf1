# SPDX-License-Identifier: MIT
"""``bagua-net trace``: the slices and messages of a running job, as a file for Perfetto."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bagua_net._stats import files, traces
from tests.package import perfetto
from tests.package.running_jobs import SECONDS, command, job, own, until

_Events = list[dict[str, Any]]


#: What Perfetto could not read.
_PROBLEMS = "SELECT name FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
#: connection, streams with a track, slices above each other on one, streams that pass for the main thread
_STREAMS = """
SELECT process.name, count(DISTINCT utid), max(depth), max(is_main_thread)
FROM slice JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
GROUP BY upid
"""
#: connection, message, its bytes, those of its slices
_MESSAGES = """
WITH
  parts AS (
    SELECT upid, extract_arg(arg_set_id, 'args.message') AS number, sum(extract_arg(arg_set_id, 'args.bytes')) AS bytes
    FROM slice JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid)
    GROUP BY upid, number
  ),
  messages AS (
    SELECT upid, extract_arg(arg_set_id, 'args.message') AS number, extract_arg(arg_set_id, 'args.bytes') AS bytes
    FROM slice JOIN process_track ON track_id = process_track.id
  )
SELECT process.name, number, messages.bytes AS of_message, parts.bytes AS of_slices
FROM messages LEFT JOIN parts USING (upid, number) JOIN process USING (upid)
"""


def _record(directory: Path, pid: int, *options: str) -> dict[str, Any]:
    output = directory / f"{pid}.json"
    done = command(directory, "trace", str(pid), "--seconds", "1", "--output", str(output), *options)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.startswith(f"{output}: ")
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def _record_something(directory: Path, pid: int) -> dict[str, Any]:
    """The job may get no processor for a second."""
    while not (found := _record(directory, pid))["traceEvents"]:
        pass
    return found


def _id(event: dict[str, Any]) -> tuple[int, str]:
    """Of a message: its id is its connection's own."""
    return event["pid"], event["id2"]["local"]


def _pieces(events: _Events) -> dict[tuple[int, int], list[int]]:
    """The bytes of the slices of each message, by what a connection has as its number."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["args"]["message"]].append(event["args"]["bytes"])
    return found


def test_a_running_job(tmp_path: Path) -> None:
    """Both ends: the slices of a message are as long together as it is, and lie in its time."""
    with job(tmp_path, BAGUA_NET_MIN_NSTREAMS="4") as ranks:
        until(lambda: len(list(own(tmp_path).glob("[0-9]*"))) == len(ranks))
        trace = _record_something(tmp_path, ranks[1])
        left = list(own(tmp_path).glob("*.trace"))
    events: _Events = trace["traceEvents"]
    assert left == []
    assert trace["otherData"]["pid"] == ranks[1]
    assert trace["otherData"]["rank"] == "1"
    begun = {_id(each): each for each in events if each["ph"] == "b"}
    ended = {_id(each): each for each in events if each["ph"] == "e"}
    assert begun.keys() == ended.keys() != set()
    pieces = _pieces(events)
    numbers = defaultdict(set)
    for key, message in begun.items():
        place, number = message["pid"], message["args"]["message"]
        numbers[place].add(number)
        assert trace["otherData"]["began_us"] <= message["ts"] <= ended[key]["ts"]
        assert sum(pieces[place, number]) == message["args"]["bytes"]
    for those in numbers.values():  # all, but some of the last ones that are not done at the end
        assert 2 * len(those) > max(those) - min(those) + 1
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {name[0] for name in names} == {"→", "←"}
    assert all("127.0.0.1" in name for name in names)
    tracks = {(each["pid"], each["tid"]) for each in events if each["ph"] == "X"}
    assert len(tracks) > len(names)
    assert len({track for _, track in tracks}) == len(tracks)  # Perfetto merges what has one number
    assert max(map(max, tracks)) < 1 << 31


def test_slices_of_a_stream_lie_one_after_the_other() -> None:
    """As the clock tells it, several may begin and end in one microsecond."""
    now = 1_800_000_000_000_000
    times = [(0, 0), (0, 0), (1, 4), (4, 4), (4, 6), (9, 9)]
    slices = [traces.Event(True, now + begin, now + end, 5, True, 1, 0, 8) for begin, end in times]
    other = traces.Event(True, now, now, 5, True, 2, 0, 8)
    snapshot = files.Snapshot(Path("one"), True, {"pid": 7}, (), ())
    trace = json.loads(json.dumps(traces.as_json(traces.Trace(snapshot, now, now + 9, [*slices, other], 0, 0))))
    shown = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    first = [each for each in shown if each["tid"] == shown[0]["tid"]]
    assert len(first) == len(times)
    assert shown[-1]["ts"] == now
    assert all(one["ts"] < two["ts"] >= one["ts"] + one["dur"] for one, two in pairwise(first))
    assert all(0 <= each["ts"] - now - begin <= 1 for each, (begin, _) in zip(first, times, strict=True))


def _bytes(rows: list[tuple[Any, ...]], arrow: str) -> dict[int, int]:
    """Of the messages of the connection that sends, →, or receives, ←."""
    assert all(of_message == of_slices for _, _, of_message, of_slices in rows)
    return {number: nbytes for name, number, nbytes, _ in rows if name.startswith(arrow)}


@pytest.mark.nightly
def test_what_perfetto_reads(tmp_path: Path) -> None:
    """A process for each connection and a track for each stream; and the slices of a message, at either end, have the
    bytes that were sent."""
    perfetto.require()
    with (
        job(tmp_path, BAGUA_NET_MIN_NSTREAMS="4", BAGUA_NET_NSTREAMS="4") as ranks,
        ThreadPoolExecutor(2) as pool,
    ):
        until(lambda: len(list(own(tmp_path).glob("[0-9]*"))) == len(ranks))
        list(pool.map(lambda pid: _record_something(tmp_path, pid), ranks.values()))
    messages = {}
    for rank, pid in ranks.items():
        problems, tracks, messages[rank] = perfetto.ask(tmp_path / f"{pid}.json", _PROBLEMS, _STREAMS, _MESSAGES)
        assert problems == []
        assert sorted(name.rpartition(" ")[0] for name, *_ in tracks) == ["← 127.0.0.1", "→ 127.0.0.1"]
        assert [row[1:] for row in tracks] == [(4, 0, 0), (4, 0, 0)]
    for sender, receiver in ((0, 1), (1, 0)):
        sent, received = _bytes(messages[sender], "→"), _bytes(messages[receiver], "←")
        both = sent.keys() & received.keys()
        assert both
        assert {number: sent[number] for number in both} == {number: received[number] for number in both}


@pytest.mark.gate
def test_a_second_recording_has_nothing_of_the_first(tmp_path: Path) -> None:
    with job(tmp_path) as ranks:
        until(lambda: len(list(own(tmp_path).glob("[0-9]*"))) == len(ranks))
        first, second = (_record_something(tmp_path, ranks[0]) for _ in range(2))
    latest = max(each["ts"] for each in first["traceEvents"] if "ts" in each)
    assert min(each["ts"] + each["dur"] for each in second["traceEvents"] if each["ph"] == "X") > latest


@pytest.mark.gate
def test_one_at_a_time(tmp_path: Path) -> None:
    with job(tmp_path) as ranks:
        until(lambda: len(files.read_all(own(tmp_path))) == len(ranks))
        snapshot = files.read_all(own(tmp_path))[0]
        path = Path(f"{snapshot.path}.trace")
        held = traces._ask(path, 60)
        until(lambda: path.read_bytes().startswith(b"begun"))
        with pytest.raises(traces.NoTrace, match="another `bagua-net trace` records this process"):
            traces.record(snapshot, 1)
        os.close(held)  # as if it were killed
        until(lambda: not path.exists())
        while not traces.record(snapshot, 1).events:
            pass  # the job may get no processor for a second


@pytest.mark.parametrize("count", [2, 1 << 40, 1 << 63])
def test_a_recording_that_says_more_than_there_is(count: int, tmp_path: Path) -> None:
    """What is there is taken."""
    path = tmp_path / "1-a"
    recording = Path(f"{path}.trace")
    header = traces._HEADER.pack(traces._MAGIC, traces._VERSION, traces._EVENT.size, count, 0, 0, 0, 9, 0)
    event = traces._EVENT.pack(1, 2, 7, 3, 100, 4, traces._SLICE, 1)
    with ThreadPoolExecutor(1) as pool, path.open("w") as process:
        fcntl.flock(process, fcntl.LOCK_EX)  # it lives
        waiting = pool.submit(traces.record, files.Snapshot(path, True, {"pid": 7}, (), ()), 1)
        until(recording.exists)
        recording.write_bytes(header + event)
        assert [each.bytes for each in waiting.result(SECONDS).events] == [100]


@pytest.mark.gate
def test_a_process_that_ends_meanwhile(tmp_path: Path) -> None:
    with job(tmp_path, left_alone=True) as ranks:
        until(lambda: len(files.read_all(own(tmp_path))) == len(ranks))
        snapshot = next(each for each in files.read_all(own(tmp_path)) if each.process["pid"] == ranks[0])
        path = Path(f"{snapshot.path}.trace")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(traces.record, snapshot, 60)
            until(lambda: path.exists() and path.read_bytes().startswith(b"begun"))
            os.kill(ranks[0], signal.SIGKILL)
            with pytest.raises(traces.NoTrace, match=f"process {ranks[0]} has ended"):
                waiting.result(SECONDS)
        assert not path.exists()


@pytest.mark.gate
def test_which_process(tmp_path: Path) -> None:
    done = command(tmp_path, "trace")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no process of this user shows connections in {own(tmp_path)}" in done.stderr
    with job(tmp_path) as ranks:
        until(lambda: len(files.read_all(own(tmp_path))) == len(ranks))
        done = command(tmp_path, "trace", "--output", str(tmp_path / "trace.json"))
        assert "there are several processes: " in done.stderr
        assert all(str(pid) in done.stderr for pid in ranks.values())
        assert "process 1 shows no connections" in command(tmp_path, "trace", "1").stderr
        done = command(tmp_path, "trace", str(ranks[0]), "-o", "/nowhere/at/all.json")
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "/nowhere/at/all.json" in done.stderr


def _with_pid(content: bytes, pid: int) -> bytes:
    """The same process, as if it had this number: in a container it may."""
    process = files._schema(content)["process"]
    at = process.start + next(at for name, at, _ in process.fields if name == "pid")
    return content[:at] + pid.to_bytes(8, "little") + content[at + 8 :]


@pytest.mark.gate
def test_two_processes_of_one_number(tmp_path: Path) -> None:
    with job(tmp_path) as ranks:
        until(lambda: len(files.read_all(own(tmp_path))) == len(ranks))
        (other,) = [each for each in files.read_all(own(tmp_path)) if each.process["rank"] == "1"]
        twin = own(tmp_path) / f"{ranks[0]}-twin"
        twin.write_bytes(_with_pid(other.path.read_bytes(), ranks[0]))
        with twin.open("r+b") as lives:
            fcntl.flock(lives, fcntl.LOCK_EX)
            output = tmp_path / "trace.json"
            done = command(tmp_path, "trace", str(ranks[0]), "--output", str(output))
            assert (done.returncode, output.exists()) == (1, False)
            for rank in "01":
                assert f"(PID {ranks[0]}, rank {rank} of 2) on {socket.gethostname()}" in done.stderr
            _record(tmp_path, ranks[0], "--rank", "0")
            wrong = command(tmp_path, "trace", str(ranks[0]), "--rank", "2")
            assert f"process {ranks[0]} of rank 2 shows no connections" in wrong.stderr
            text = command(tmp_path, "explain", str(ranks[0]), "--seconds", "1").stdout
            names = [line for line in text.splitlines() if not line.startswith(" ")]
            assert sorted(name.partition(", ")[2] for name in names) == [
                f"rank {rank} of 2) on {socket.gethostname()}" for rank in "01"
            ]


@pytest.mark.nightly  # it waits for an answer
def test_a_process_that_is_stopped(tmp_path: Path) -> None:
    with job(tmp_path, left_alone=True) as ranks:
        until(lambda: len(files.read_all(own(tmp_path))) == len(ranks))
        os.kill(ranks[0], signal.SIGSTOP)
        earlier = tmp_path / "earlier.json"
        earlier.write_text("a recording")
        done = command(tmp_path, "trace", str(ranks[0]), "--seconds", "1", "--output", str(earlier))
        os.kill(ranks[0], signal.SIGKILL)
    assert done.returncode == 1
    assert earlier.read_text() == "a recording"
    assert f"process {ranks[0]} does not answer; it is stopped" in done.stderr
    assert list(own(tmp_path).glob("*.trace")) == []
