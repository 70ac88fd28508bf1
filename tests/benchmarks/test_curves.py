# SPDX-License-Identifier: MIT
"""The benchmark of the time to an accuracy: a small run, its report, the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.curves import report
from benchmarks.report.jsonl import Reading
from tests.benchmarks.support import measure, needs_namespaces

STORED = sorted((ROOT / "benchmarks" / "results" / "curves").glob("*.jsonl"))


@pytest.mark.nightly
@needs_namespaces
def test_a_small_run(tmp_path: Path, plugin: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "small.jsonl"
    words = ["--tasks", "characters", "--mbits", "200", "--seeds", "1", "--steps", "20", "--rows", "low-precision"]
    done = measure("time-to-accuracy", *words, "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, readings = report.load(output)
    assert [each["side"] for each in readings] == [
        "gloo exact, sgd",
        "bagua_net exact, sgd",
        "bagua_net low-precision decentralized",
    ]
    for reading in readings:
        assert len(reading["accuracy"]) == len(reading["seconds"]) == 2
        assert 0 < reading["seconds"][0] < reading["seconds"][1]
    assert len({tuple(each["accuracy"]) for each in readings}) >= 2, "the algorithm did not take part"
    assert output.with_suffix(".md").read_text() == report.render(head, readings)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "poems"], "there is no task 'poems'; there are digits, characters"),
        (["--rows", "nothing"], "no row's name contains 'nothing'; there are exact, "),
        (["--mbits", "fast"], "--mbits fast is not possible; give whole numbers"),
        (["--steps", "15"], "--steps 15 is not possible; give a multiple of 10"),
    ],
    ids=["task", "row", "network", "steps"],
)
def test_what_there_is_not_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from benchmarks.curves.run import main

    assert main(words) == 2
    assert said in capsys.readouterr().err


def _reading(side: str, seconds: float, *accuracy: float, seed: int = 0) -> Reading:
    """``seconds``: from one value to the next."""
    place = {"task": "digits", "network": "20 Mbit/s", "against": "exact, sgd"}
    times = [seconds * number for number in range(1, len(accuracy) + 1)]
    return {**place, "side": side, "seed": seed, "seconds": times, "accuracy": list(accuracy)}


_EXACT = _reading("bagua_net exact, sgd", 2.0, 10, 40, 70, 80, 90, 90)


def test_accuracy_is_smoothed_over_what_came_before() -> None:
    assert report.smoothed(_EXACT) == pytest.approx([10, 25, 40, 190 / 3, 80, 260 / 3])


def test_what_is_to_be_reached_is_that_of_two_thirds_of_the_steps() -> None:
    assert report.wanted(_EXACT) == pytest.approx(190 / 3)
    assert report.reached(_EXACT, 190 / 3) == 3
    assert report.reached(_EXACT, 87) is None


def _row(*readings: Reading) -> str:
    """Of the last one's side."""
    table = report._Table(readings, 10).lines()
    return next(line for line in table if line.startswith(f"| {readings[-1]['side']} |"))


def test_times_are_those_until_the_same_accuracy() -> None:
    """Twice as fast a step, and one more of them until there."""
    other = _reading("bagua_net other", 1.0, 10, 20, 50, 60, 80, 90)
    gloo = _reading("gloo exact, sgd", 4.0, *_EXACT["accuracy"])
    assert _row(gloo, _EXACT, other) == "| bagua_net other | exact, sgd | 1 of 1 | 50 | 5 [5–5] | 3.20 | 1.60 |"


def test_what_is_slower_is_bold_and_what_never_comes_there_has_no_time() -> None:
    gloo = _reading("gloo exact, sgd", 1.0, *_EXACT["accuracy"])
    slow = _reading("bagua_net slow", 4.0, *_EXACT["accuracy"])
    assert "| 16 [16–16] | **0.25** | **0.50** |" in _row(gloo, _EXACT, slow)
    never = _reading("bagua_net never", 1.0, 10, 10, 10, 10, 10, 10)
    assert _row(gloo, _EXACT, never) == "| bagua_net never | exact, sgd | 0 of 1 | – | – | – | – |"


def test_the_tables_are_those_of_the_readings() -> None:
    for path in STORED:
        head, readings = report.load(path)
        assert path.with_suffix(".md").read_text() == report.render(head, readings), path.name
        assert report.lines(head, readings) == path.read_text(), path.name
