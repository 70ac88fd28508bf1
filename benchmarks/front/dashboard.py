# SPDX-License-Identifier: MIT
"""Draws what the dashboard for Grafana (docs/) shows of a job: what a Prometheus that scrapes `bagua-net export`
answers to each of its queries.

    apt-get install prometheus; pip install prometheus-client matplotlib

It is not drawn by Grafana, which no package index has.
"""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT

DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"
_PROGRAM = "prometheus"
_SCRAPE_S = 1
#: Grafana has four scrapes in an interval at least.
_RATE_INTERVAL = f"{4 * _SCRAPE_S}s"
#: Grafana's units, as drawn: a word, and what a value is multiplied with.
_UNITS = {"Bps": ("MB/s", 1e-6), "s": ("ms", 1e3), "percentunit": ("%", 1e2), "short": ("", 1.0)}
_START_S = 30.0
_REQUEST_S = 10.0
#: Grafana's grid has 24 columns.
_COLUMNS = 24
#: Pixels: readable where a page shows it at 830.
WIDTH, HEIGHT = 1000, 760
_DPI = 100
#: A fifth of the bytes that all of them would take.
_COLOURS = 32


@dataclass(frozen=True)
class Line:
    name: str
    at: list[float]
    values: list[float]


def missing() -> str | None:
    """What would have to be installed first."""
    for package in ("prometheus_client", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    return None if shutil.which(_PROGRAM) else f"there is no {_PROGRAM} here"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_REQUEST_S) as answer:
        body: bytes = answer.read()
    return body


def _await_ready(address: str) -> None:
    """Raises TimeoutError where it does not answer."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            _get(f"{address}/-/ready")
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{_PROGRAM} does not answer within {_START_S:.0f} s") from None
            time.sleep(0.1)
        else:
            return


@contextmanager
def server(environment: Mapping[str, str], directory: Path) -> Iterator[str]:
    """A Prometheus that scrapes the processes of this environment; yields its address."""
    command = [sys.executable, "-m", "bagua_net", "export", "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as exporter:
        try:
            assert exporter.stderr
            said = exporter.stderr.readline().strip()
            target = urllib.parse.urlsplit(said.rpartition(" ")[2]).netloc
            if not target:
                raise ChildProcessError(f"bagua-net export: {said or 'it has ended'}")
            with _prometheus(target, directory) as address:
                yield address
        finally:
            exporter.kill()


@contextmanager
def _prometheus(target: str, directory: Path) -> Iterator[str]:
    config, listen = directory / "prometheus.yml", f"127.0.0.1:{_free_port()}"
    scrape = {"job_name": "bagua_net", "scrape_interval": f"{_SCRAPE_S}s", "static_configs": [{"targets": [target]}]}
    config.write_text(json.dumps({"scrape_configs": [scrape]}))  # which is YAML
    words = [f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}", f"--web.listen-address={listen}"]
    with subprocess.Popen([_PROGRAM, *words], stderr=subprocess.DEVNULL) as process:
        try:
            _await_ready(f"http://{listen}")
            yield f"http://{listen}"
        finally:
            process.kill()


def _name(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda word: labels.get(word[1], ""), legend)


def _lines(address: str, target: Mapping[str, str], begin: float, end: float) -> list[Line]:
    """What Prometheus answers to a panel's query, in seconds from the beginning."""
    query = target["expr"].replace("$__rate_interval", _RATE_INTERVAL)
    words = urllib.parse.urlencode({"query": query, "start": begin, "end": end, "step": _SCRAPE_S})
    found = json.loads(_get(f"{address}/api/v1/query_range?{words}"))["data"]["result"]
    lines = [
        Line(
            _name(target["legendFormat"], each["metric"]),
            [at - begin for at, _ in each["values"]],
            [float(value) for _, value in each["values"]],
        )
        for each in found
    ]
    return sorted(lines, key=lambda line: line.name)  # a rank has one colour in all panels


def _draw_panel(axes: Any, panel: Mapping[str, Any], lines: list[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    unit, factor = _UNITS[defaults["unit"]]
    stacks = bool(defaults.get("custom", {}).get("stacking"))
    every = sorted({at for line in lines for at in line.at})
    below = [0.0] * len(every)
    for line in lines:
        at, values = line.at, [value * factor for value in line.values]
        if stacks:  # what is missing at a time is nothing then
            there = dict(zip(at, values, strict=True))
            at, values = every, [there.get(each, 0.0) + under for each, under in zip(every, below, strict=True)]
            axes.fill_between(at, below, values, alpha=0.4)
            below = values
        axes.plot(at, values, label=line.name, linewidth=1.2)
    axes.set_title(panel["title"], fontsize=9, loc="left")
    axes.set_ylabel(unit, fontsize=8)
    axes.set_ylim(bottom=0, top=None if any(max(line.values, default=0) > 0 for line in lines) else 1)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="lower left")


def draw(address: str, begin: float, end: float, output: Path) -> None:
    """Writes a PNG of all panels, in the dashboard's grid. begin and end: in seconds since 1970.

    Raises:
        OSError: Prometheus does not answer, or the file cannot be written.
        ValueError: it has nothing for a panel.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image  # which matplotlib needs

    panels = json.loads(DASHBOARD.read_text())["panels"]
    rows = sorted({panel["gridPos"]["y"] for panel in panels})
    figure = plt.figure(figsize=(WIDTH / _DPI, HEIGHT / _DPI), layout="constrained")
    grid = figure.add_gridspec(len(rows), _COLUMNS)
    for panel in panels:
        place = panel["gridPos"]
        axes = figure.add_subplot(grid[rows.index(place["y"]), place["x"] : place["x"] + place["w"]])
        axes.set_xlim(0, end - begin)
        if place["y"] == rows[-1]:
            axes.set_xlabel("s", fontsize=8)
        lines = [line for each in panel["targets"] for line in _lines(address, each, begin, end)]
        if not lines:
            raise ValueError(f"Prometheus has nothing for the panel {panel['title']!r}")
        _draw_panel(axes, panel, lines)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(_COLOURS).save(output, "PNG", optimize=True)
