# SPDX-License-Identifier: MIT
"""The figures of the README and of docs/performance.md are those of stored results, and follow from their rows."""

from __future__ import annotations

import html
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from benchmarks.front import dashboard, figures, page, perfetto, picture, running_job, tables
from benchmarks.report.figures import number
from tests.benchmarks.support import measure, needs_namespaces

_FACTOR = re.compile(r"(?P<figure>\d+(?:\.\d+)?) (?:GB/s|µs|ms|s)\b")


@pytest.mark.parametrize("path", page.BLOCKS, ids=lambda path: path.name)
def test_the_page_has_what_was_stored(path: Path) -> None:
    assert path.read_text() == page.with_figures(path), "write it again: python3 -m benchmarks front-page"


def test_a_gain_follows_from_its_row() -> None:
    rows = [line for line in figures.table().splitlines() if "**" in line]
    assert rows
    for row in rows:
        before, after = (float(found["figure"]) for found in _FACTOR.finditer(row.split("|", 2)[2]))
        gain = float(re.findall(r"\*\*([\d.]+) ×", row)[0])
        faster = "GB/s" in row
        assert gain == pytest.approx(after / before if faster else before / after, abs=0.05 if gain >= 2 else 0.005)


def test_each_figure_is_the_median_of_its_runs() -> None:
    """Beside the code that writes the pages: straight from the file."""
    stored = figures.NCCL.read_text().splitlines()
    (row,) = [
        line
        for line in stored
        if '"scenario": "S12"' in line
        and '"classes_mbits": [1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000]' in line
        and '"size": 16777216' in line
        and '"ranks"' not in line
        and '"op"' not in line
    ]
    values = sorted(float(found) for found in re.findall(r'"side": "ours"[^}]*?"value": ([\d.]+)', row))
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    assert f"| {number(median)} GB/s [" in figures.table()


def test_the_pictures_draw_the_stored_run() -> None:
    """In both colours, every size of both networks."""
    for theme in picture.THEMES:
        drawn = page.picture_path(theme).read_text()
        for title, records in page.networks().items():
            assert title in drawn
            assert records


def test_no_cell_of_the_tables_is_empty() -> None:
    for content in (tables.nccl(), tables.training(), tables.calls(), tables.whole_steps()):
        assert "–" not in re.sub(r"\[[^]]*\]", "", content)


def _terminal(path: Path) -> list[list[str]]:
    """The words of each line of a picture that has some."""
    lines: dict[str, str] = {}
    for at, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', path.read_text()):
        lines[at] = f"{lines.get(at, '')} {html.unescape(text)}"
    return [line.split() for line in lines.values() if line.strip()]


def test_the_picture_of_a_job_needs_nothing_from_elsewhere() -> None:
    drawn = running_job.PICTURE.read_text()
    assert re.findall(r"https?://[^\s\"')]*", drawn) == ["http://www.w3.org/2000/svg"]
    assert "url(#" in drawn
    assert not re.search(r"url\((?!#)|@import|@font-face", drawn)


@pytest.mark.nightly
@needs_namespaces
def test_the_picture_of_a_job_shows_what_top_prints(tmp_path: Path) -> None:
    """Drawn again: both commands, the same columns, each rank's connections, and the streams of one."""
    file = tmp_path / "top.svg"
    done = measure("running-job", "--output", str(file))
    assert done.returncode == 0, done.stderr
    again, kept = _terminal(file), _terminal(running_job.PICTURE)
    headings = [line for line in again if line[0] in ("$", "PID")]
    assert headings == [line for line in kept if line[0] in ("$", "PID")]
    assert len(headings) == 2 * len(running_job.SCREENS)
    assert [line[1] for line in again if line[1] in ("0/2", "1/2")].count("1/2") == 2
    assert len([line for line in again if line[0].startswith(":")]) == 8


def _pixels(path: Path) -> tuple[int, int]:
    """Width and height, as a PNG's header has them."""
    signature, width, height = struct.unpack(">16sII", path.read_bytes()[:24])
    assert signature == b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
    return width, height


@pytest.mark.parametrize("picture", [(running_job.RECORDING, perfetto), (running_job.DASHBOARD, dashboard)])
def test_the_pictures_of_a_recording_and_of_a_dashboard_are_small(picture: tuple[Path, Any]) -> None:
    path, drawn_by = picture
    assert _pixels(path) == (drawn_by.WIDTH, drawn_by.HEIGHT)
    assert path.stat().st_size <= 70_000


@pytest.mark.nightly
@needs_namespaces
@pytest.mark.parametrize(("option", "drawn_by"), [("--trace", perfetto), ("--dashboard", dashboard)])
def test_pictures_of_a_job(tmp_path: Path, option: str, drawn_by: Any) -> None:
    """Drawn only when Perfetto's interface shows the messages of the connection that sends, and when Prometheus has
    something for each panel."""
    if missing := drawn_by.missing():
        pytest.skip(missing)
    file = tmp_path / "picture.png"
    done = measure("running-job", "--output", str(tmp_path / "top.svg"), option, str(file))
    assert done.returncode == 0, done.stderr
    assert _pixels(file) == (drawn_by.WIDTH, drawn_by.HEIGHT)
