# SPDX-License-Identifier: MIT
"""``bagua-net export`` and ``explain``: what monitoring gets of running processes, and what a person is told."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bagua_net._stats import exporters
from bagua_net._stats.files import Snapshot
from tests.package import bench_command
from tests.package.running_jobs import SECONDS, command, job, own, until

prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
_DASHBOARD = Path(__file__).parents[2] / "docs/grafana-dashboard.json"
#: Its panels that stay at 0 while the network loses nothing.
_QUIET = ("Segments that were sent again", "Streams that were repaired")


def _samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def _of_pid(rows: dict[tuple[tuple[str, str], ...], float], pid: int) -> float:
    return sum(value for labels, value in rows.items() if ("pid", str(pid)) in labels)


def _check_explained(directory: Path, pid: int) -> None:
    until(lambda: any(each["peers"] for each in json.loads(command(directory, "explain", "--json").stdout)))
    done = command(directory, "explain", str(pid))
    assert done.returncode == 0, done.stderr
    text = done.stdout.splitlines()
    assert re.fullmatch(rf"\S+ \(PID {pid}, rank 0 of 2\)", text[0])
    assert re.fullmatch(r"  to 127\.0\.0\.1 \(.*B/s\): [a-z ]+", text[1])
    assert len(text) >= 5
    assert all(line.startswith("    ") and line.endswith(".") for line in text[2:5])
    wrong = command(directory, "explain", "1")
    assert wrong.returncode == 1
    assert len(wrong.stderr.splitlines()) == 1


def test_a_running_job(tmp_path: Path) -> None:
    with job(tmp_path, SLURM_JOB_ID="4711") as ranks:
        until(lambda: "bagua_net_peer_sent_bytes_total{" in command(tmp_path, "export", "--once").stdout)
        done = command(tmp_path, "export", "--once")
        _check_explained(tmp_path, ranks[0])
    assert done.returncode == 0, done.stderr
    found = _samples(done.stdout)
    for pid in ranks.values():
        assert _of_pid(found["bagua_net_peer_sent_bytes_total"], pid) > 0
        assert _of_pid(found["bagua_net_sent_bytes_total"], pid) > 0
        assert _of_pid(found["bagua_net_peer_round_trip_seconds"], pid) > 0
        assert _of_pid(found["bagua_net_message_seconds_count"], pid) > 0
        senders = {
            labels: n for labels, n in found["bagua_net_peer_connections"].items() if ("direction", "send") in labels
        }
        assert _of_pid(found["bagua_net_peer_limit"], pid) == _of_pid(senders, pid) > 0
    info = [dict(labels) for labels in found["bagua_net_process_info"]]
    assert {(row["rank"], row["nranks"], row["slurm_job_id"]) for row in info} == {(rank, "2", "4711") for rank in "01"}
    assert {dict(labels)["peer"] for labels in found["bagua_net_peer_sent_bytes_total"]} == {"127.0.0.1"}


def _metrics_of(*looks: list[Snapshot]) -> list[dict[str, dict[tuple[tuple[str, str], ...], float]]]:
    from bagua_net._stats.metrics import Metrics

    waiting = list(looks)
    registry = prometheus_client.CollectorRegistry()
    registry.register(Metrics(lambda: waiting.pop(0)))
    return [_samples(prometheus_client.generate_latest(registry).decode()) for _ in looks]


def _snapshot(*connections: tuple[int, int]) -> Snapshot:
    """Of connections with an id and bytes that they have sent."""
    return Snapshot(
        Path("one"),
        True,
        {"pid": 1, "rank": "0"},
        tuple({"id": number, "sender": 1, "peer": "10.0.0.2:1", "bytes_sent": sent} for number, sent in connections),
        tuple(
            {"connection": number, "sender": 1, "serial": 1, "segments_sent": sent, "rtt_us": 9}
            for number, sent in connections
        ),
    )


def _totals(*looks: list[Snapshot]) -> list[list[float]]:
    found = _metrics_of(*looks)
    for each in found:
        sent, segments = (each.get(f"bagua_net_peer_sent_{what}_total", {}) for what in ("bytes", "segments"))
        assert sent.values() == segments.values() or list(sent.values()) == list(segments.values())
    return [list(each.get("bagua_net_peer_sent_bytes_total", {}).values()) for each in found]


def test_counters_do_not_fall_when_connections_end() -> None:
    both, one, other = _snapshot((1, 100), (2, 10)), _snapshot((2, 20)), _snapshot((2, 30), (3, 1))
    assert _totals([both], [one], [other]) == [[110], [120], [131]]
    assert _totals([both], *([[one]] * 20), [other])[-1] == [131]


def test_a_row_that_could_not_be_read_once_is_not_counted_twice() -> None:
    both, one, later = _snapshot((1, 100), (2, 10)), _snapshot((2, 20)), _snapshot((1, 110), (2, 30))
    assert _totals([both], [one], [later]) == [[110], [120], [140]]
    assert _totals([both], [], [later]) == [[110], [], [140]]


@pytest.mark.parametrize("sender", [1, 0])
def test_a_connection_that_stands_still_is_counted_in_its_direction(sender: int) -> None:
    """A rank that waits for a peer which has stopped has nothing to send."""
    (moving,) = _snapshot((1, 100)).connections
    waiting = {**moving, "id": 2, "sender": sender, "outstanding": 1, "still_us": 3_000_000}
    (found,) = _metrics_of([dataclasses.replace(_snapshot((1, 100)), connections=(moving, waiting))])
    counts = {dict(labels)["direction"]: n for labels, n in found["bagua_net_peer_still_connections"].items()}
    assert counts == {"send": sender, "receive": 1 - sender}


def test_what_is_posted_is_told_apart_by_direction() -> None:
    """Receives are posted early, and say nothing about what a sender does."""
    (sends,) = _snapshot((1, 100)).connections
    rows = ({**sends, "posted_us": 2_000_000}, {**sends, "sender": 0, "posted_us": 9_000_000})
    (found,) = _metrics_of([dataclasses.replace(_snapshot((1, 100)), connections=rows)])
    posted = {dict(labels)["direction"]: n for labels, n in found["bagua_net_peer_posted_seconds_total"].items()}
    assert posted == {"send": 2, "receive": 9}


def test_a_process_that_has_gone_quiet_is_not_held_back_any_more() -> None:
    """It publishes nothing while it has nothing to do."""
    from bagua_net._stats.metrics import Metrics

    def at(published_us: int, sent: int) -> list[Snapshot]:
        each = _snapshot((1, sent))
        connection = {**each.connections[0], "published_us": published_us}
        return [
            dataclasses.replace(each, process={**each.process, "published_us": published_us}, connections=(connection,))
        ]

    looks = [(1.0, at(1_000_000, 0)), (3.0, at(3_000_000, 100)), (4.0, at(3_000_000, 100)), (60.0, at(3_000_000, 100))]
    words = []
    registry = prometheus_client.CollectorRegistry()
    metrics = Metrics(lambda: looks[0][1], clock=lambda: looks[0][0])
    registry.register(metrics)
    for _ in range(4):
        found = _samples(prometheus_client.generate_latest(registry).decode()).get("bagua_net_peer_limit", {})
        words.append([dict(labels)["limit"] for labels, count in found.items() if count])
        del looks[0]
    assert words == [[], ["application"], ["application"], ["idle"]]


def test_two_processes_of_one_number_are_added() -> None:
    here, there = _snapshot((1, 100)), dataclasses.replace(_snapshot((1, 5)), path=Path("two"))
    (found,) = _metrics_of([here, there])
    assert list(found["bagua_net_peer_sent_bytes_total"].values()) == [105]
    assert len(found["bagua_net_process_info"]) == 1


@contextlib.contextmanager
def _exporter(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "bagua_net", "export", *arguments],
        env=bench_command.environment(BAGUA_NET_STATS_DIR=str(directory)),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    return process.stderr.readline()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def test_one_of_several_exporters_serves(tmp_path: Path) -> None:
    with _exporter(tmp_path, "--port", "0") as first:
        url = _line(first).split()[-1]
        assert "bagua_net_process" in _get(url)
        with _exporter(tmp_path, "--port", "0") as second:
            assert "another exporter" in _line(second)
            first.kill()
            assert "bagua_net_process" in _get(_line(second).split()[-1])
    assert own(tmp_path).stat().st_mode & 0o777 == 0o700


def _top(*options: str) -> subprocess.CompletedProcess[str]:
    return command(Path("/nowhere"), "top", "--once", *options)


@pytest.mark.gate
def test_top_shows_the_hosts_of_exporters(tmp_path: Path) -> None:
    """Also where one of them does not answer."""
    with job(tmp_path) as ranks, _exporter(tmp_path, "--port", "0") as exporter:
        port = _line(exporter).split()[-1].rpartition(":")[2].partition("/")[0]
        until(lambda: "bagua_net_peer_limit" in _get(f"http://127.0.0.1:{port}/metrics"))
        until(lambda: len(_top("--from", f"127.0.0.1:{port}").stdout.splitlines()) > len(ranks))
        done = _top("--from", f"127.0.0.1:{port},127.0.0.1:1", "--interval", "2", "--sort", "now")
    head, *lines = [line.split() for line in done.stdout.splitlines()]
    assert head == ["HOST", "PID", "RANK", "PEER", "STREAMS", "NOW", "MEAN", "P99", "RTT", "RETR", "LIMIT"]
    assert {line[1] for line in lines} == {str(pid) for pid in ranks.values()}
    assert all(line[0] == line[4] == "127.0.0.1" and line[2] in ("0/2", "1/2") for line in lines)
    assert {line[3] for line in lines} == {"→", "←"}
    assert any(line[6] != "0" for line in lines)
    assert done.stderr.startswith("bagua-net: http://127.0.0.1:1/metrics: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "127.0.0.1:1"], "does `bagua-net export --address 0.0.0.0` run there?"),
        (["--from", ","], "--from names no host"),
        (["--from", "a", "--streams"], "exporters have no single streams"),
    ],
)
def test_what_top_refuses(options: list[str], said: str) -> None:
    done = _top(*options)
    assert done.returncode != 0
    assert said in done.stderr


def test_addresses_of_exporters() -> None:
    for named, host, url in (
        ("node1", "node1", "http://node1:9478/metrics"),
        ("node1:80", "node1", "http://node1:80/metrics"),
        ("[fd00::1]", "fd00::1", "http://[fd00::1]:9478/metrics"),
        ("[fd00::1]:80", "fd00::1", "http://[fd00::1]:80/metrics"),
    ):
        assert exporters.address(named) == (host, url)
    for named in ("fd00::1", "node1:x", "user@node1", "node1/path", ""):
        with pytest.raises(exporters.ExporterUnusable, match="not HOST, HOST:PORT"):
            exporters.address(named)


class _Speaker(threading.Thread):
    """Says this to each who connects, and then nothing."""

    def __init__(self, words: bytes) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._words = words
        self.start()

    def run(self) -> None:
        kept = []
        while True:
            connection = self._listener.accept()[0]
            kept.append(connection)
            connection.sendall(self._words)


@pytest.mark.gate
@pytest.mark.parametrize(
    "words",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.0 500 \x1b]52;c;eA==\x07\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n<html",
        b'HTTP/1.0 200 OK\r\nContent-Length: 90\r\n\r\nbagua_net_peer_x_bucket{peer="a",le="x"} 1\n',
    ],
)
def test_what_is_no_exporter(words: bytes) -> None:
    found, said = exporters.look_at([f"127.0.0.1:{_Speaker(words).port}"])
    assert found == {}
    assert "does `bagua-net export --address 0.0.0.0` run there?" in said[0]
    assert said[0].isprintable()


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with _exporter(tmp_path, "--port", "0") as first:
        port = _line(first).split()[-1].rpartition(":")[2].partition("/")[0]
        other = tmp_path / "other"
        other.mkdir()
        done = command(other, "export", "--port", port)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "--port" in done.stderr


def test_the_file_for_node_exporter(tmp_path: Path) -> None:
    file = tmp_path / "bagua.prom"
    with _exporter(tmp_path, "--textfile", str(file)):
        until(file.exists)
        assert "bagua_net_process" in file.read_text()


def test_another_s_directory_is_one_line(tmp_path: Path) -> None:
    own(tmp_path).mkdir(mode=0o777)
    own(tmp_path).chmod(0o777)
    done = command(tmp_path, "export")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "BAGUA_NET_STATS_DIR" in done.stderr


def test_without_the_package_it_is_one_line(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['prometheus_client'] = None; from bagua_net.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "export", "--once"],
        env=bench_command.environment(BAGUA_NET_STATS_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "pip install prometheus-client" in done.stderr


def _queries() -> list[tuple[str, str]]:
    """Panel of the dashboard, and what it asks."""
    panels = json.loads(_DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    asked = {name for _, query in _queries() for name in re.findall(r"bagua_net_\w+", query)}
    at_first = _snapshot((1, 1))
    later = dataclasses.replace(at_first, process={**at_first.process, "published_us": 2_000_000})
    assert asked
    assert asked <= set(_metrics_of([at_first], [later])[1])


def _without(read: Any, written: Any) -> list[Any]:
    """What was written and is not in what was read."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [lost for name, value in written.items() for lost in _without(read.get(name), value)]
    if isinstance(written, list) and isinstance(read, list) and len(read) == len(written):
        return [lost for pair in zip(read, written, strict=True) for lost in _without(*pair)]
    return [] if read == written else [written]


@pytest.mark.nightly
def test_grafana_knows_every_word_of_the_dashboard() -> None:
    """By Grafana's own description of dashboards, which drops what it does not know."""
    models = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="grafana-foundation-sdk is not installed"
    )
    from grafana_foundation_sdk.cog import encoder, plugins

    plugins.register_default_plugins()
    written = json.loads(_DASHBOARD.read_text())
    read = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(written)))
    assert _without(read, written) == []


@pytest.mark.nightly
def test_prometheus_scrapes_a_running_transfer(tmp_path: Path) -> None:
    """Debian's (apt-get install prometheus): each panel of the dashboard has something to show."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no prometheus here")
    port = bench_command.free_port()
    with job(tmp_path), _exporter(tmp_path, "--port", "0") as exporter:
        target = urllib.parse.urlsplit(_line(exporter).split()[-1]).netloc
        config = tmp_path / "prometheus.yml"
        scrape = {"job_name": "bagua_net", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
        config.write_text(json.dumps({"scrape_configs": [scrape]}))  # which is YAML
        arguments = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        arguments.append(f"--web.listen-address=127.0.0.1:{port}")
        with subprocess.Popen([program, *arguments], stderr=subprocess.DEVNULL) as server:
            try:
                for panel, query in _queries():
                    until(partial(_shows, port, panel, query))
            finally:
                server.kill()


def _shows(port: int, panel: str, query: str) -> bool:
    """A number, and more than 0 but where that is good. Grafana has four scrapes in an interval at least."""
    values = _asked(port, query.replace("$__rate_interval", "4s"))
    return any(value > 0 or (value == 0 and panel in _QUIET) for value in values)


def _asked(port: int, query: str) -> list[float]:
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        found: list[dict[str, Any]] = json.loads(_get(url))["data"]["result"]
    except OSError:
        time.sleep(0.2)
        return []
    return [float(each["value"][1]) for each in found]
