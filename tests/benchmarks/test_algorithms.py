# SPDX-License-Identifier: MIT
"""The benchmark of training steps: a small run, its report, the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.steps import report
from tests.benchmarks.support import measure, needs_namespaces

STORED = ROOT / "benchmarks" / "results" / "algorithms"


@pytest.mark.nightly
@needs_namespaces
def test_a_small_run(tmp_path: Path, plugin: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "small.jsonl"
    sides = ["gloo plain", "bagua_net plain", "gloo ByteGrad 8", "bagua_net ByteGrad 8", "bagua_net ByteGrad 4"]
    sides += ["bagua_net QAdam 1", "bagua_net DiLoCo 8", "gloo async", "bagua_net async", "bagua_net bf16"]
    sides += ["gloo auto", "bagua_net auto"]
    words = ["--models", "small", "--networks", "no caps", "--ranks", "2", "--pairs", "1", "--backward", "0.01"]
    done = measure("algorithms", *words, "--sides", ";".join(sides), "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    heads, readings = report.load(output)
    assert [reading["side"] for reading in readings] == sides
    sent = {reading["side"]: reading["sent"] for reading in readings}
    assert 3.5 < sent["bagua_net plain"] / sent["bagua_net ByteGrad 8"] < 4.1
    assert 3.5 < sent["gloo plain"] / sent["gloo ByteGrad 8"] < 4.1
    assert 6.5 < sent["bagua_net plain"] / sent["bagua_net ByteGrad 4"] < 8.1
    assert sent["bagua_net QAdam 1"] < sent["bagua_net ByteGrad 4"] / 2
    assert sent["bagua_net DiLoCo 8"] < sent["bagua_net plain"] / 20
    chosen = {reading["side"]: reading["chosen"] for reading in readings if "chosen" in reading}
    assert chosen.keys() == {"gloo auto", "bagua_net auto"}
    assert set(chosen.values()) <= set(report.CANDIDATES)
    assert len(report.regrets(readings, "bagua_net")) == 1
    assert output.with_suffix(".md").read_text() == report.render(heads, readings)


@pytest.mark.nightly
@needs_namespaces
def test_a_run_that_was_interrupted_goes_on(tmp_path: Path, plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of its last pair one side was not read: that pair is read anew, and the first one stays."""
    pytest.importorskip("torch")
    from benchmarks.steps.run import main

    output, sides = tmp_path / "small.jsonl", ["gloo plain", "bagua_net plain"]
    words = ["--models", "small", "--networks", "no caps", "--ranks", "2", "--backward", "0", "--output", str(output)]
    words += ["--sides", ";".join(sides), "--pairs", "2"]
    assert main(words) == 0
    whole = output.read_text().splitlines(keepends=True)
    output.write_text("".join(whole[:-1]))
    assert main(words) == 2
    assert f"{output} exists: --resume continues it" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 0
    heads, readings = report.load(output)
    assert [(each["pair"], each["side"]) for each in readings] == [
        *((0, side) for side in sides),
        *((1, side) for side in reversed(sides)),
    ]
    assert report.lines([], readings[:2]) == "".join(whole[1:3])
    assert len(heads) == 2
    text = output.read_text()
    assert main([*words, "--resume"]) == 0
    assert output.read_text() == text, "nothing was left to read"
    assert output.with_suffix(".md").read_text() == report.render(heads, readings)


def test_a_file_of_another_backward_pass_is_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from benchmarks.steps.run import main

    output = tmp_path / "other.jsonl"
    output.write_text(report.lines([{"started": "", "settings": {"backward_s": 0.5}}], []))
    assert main(["--networks", "no caps", "--output", str(output), "--resume"]) == 2
    assert "has steps whose backward takes 0.5 s, not 0.3" in capsys.readouterr().err


def test_the_quick_cells_are_among_all() -> None:
    pytest.importorskip("torch")
    from benchmarks.steps.cells import QUICK, QUICK_SIDES
    from benchmarks.steps.networks import networks
    from benchmarks.steps.run import _SIDES

    assert {each.network for each in QUICK} == networks(Path()).keys()
    assert {each.model for each in QUICK} == {"VGG16", "BERT-large"}
    assert set(QUICK_SIDES) <= set(_SIDES)
    assert {f"bagua_net {way}" for way in ("auto", *report.CANDIDATES)} <= set(QUICK_SIDES)


@pytest.mark.nightly
def test_what_there_is_not_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = measure("algorithms", "--sides", "gloo nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert "no side 'gloo nothing'; there are gloo plain" in done.stderr


def _cell(*seconds: tuple[str, float, float]) -> list[report.Reading]:
    """The two pairs of each side."""
    place = {"model": "VGG16", "network": "1 Gbit/s", "ranks": 2, "sent": 1e6, "processor_s": 1.0}
    return [
        {**place, "side": side, "pair": pair, "seconds": value}
        for side, *both in seconds
        for pair, value in enumerate(both)
    ]


def test_ratios_are_taken_within_pairs() -> None:
    cell = _cell(("gloo plain", 4.0, 12.0), ("bagua_net ByteGrad 8", 1.0, 4.0))
    assert report.speedup(cell, "bagua_net ByteGrad 8", "gloo plain") == 3.5
    assert report.speedup(cell, "gloo plain", "bagua_net plain") is None


def test_a_loss_is_bold() -> None:
    text = report.render([], _cell(("gloo plain", 4.0, 4.0), ("bagua_net ByteGrad 8", 8.0, 8.0)))
    assert "| bagua_net ByteGrad 8 | 8 [8–8] | **0.50** | – | 1 | 0.00836 | 1 |" in text


def test_the_network_s_own_time_is_that_of_all_its_classes() -> None:
    from benchmarks.steps.networks import least_seconds

    sent = 1e9 * 1448 / 1514 / 8  # with the frames' headers, a gigabit
    assert least_seconds("10 Gbit/s", sent) == pytest.approx(0.1)
    assert least_seconds("unequal classes", sent) == pytest.approx(1)
    assert least_seconds("no caps", sent) is None
    assert least_seconds("20 ms, 0.1 % lost", sent) is None


def _auto(chosen: str, *seconds: tuple[str, float, float]) -> list[report.Reading]:
    cell = _cell(*((f"gloo {way}", first, second) for way, first, second in seconds))
    return [{**each, "chosen": chosen} if each["side"] == "gloo auto" else each for each in cell]


_CANDIDATES = (("plain", 4.0, 4.0), ("bf16", 3.0, 3.0), ("ByteGrad 8", 2.0, 5.0))


def test_what_auto_loses_is_taken_within_pairs_by_the_best_of_all_pairs() -> None:
    """bf16: in one pair ByteGrad was faster."""
    cell = _auto("ByteGrad 8", ("auto", 2.4, 6.0), *_CANDIDATES)
    assert report.regrets(cell, "gloo") == pytest.approx([0.8, 2.0])
    assert "| VGG16 | 1 Gbit/s | 2 | gloo | ByteGrad 8 | 1.40 [0.80–2.00] | 1.17 [1.17–1.17] |" in report.render(
        [], cell
    )


def test_what_auto_loses_needs_all_of_its_candidates() -> None:
    cell = _auto("bf16", ("auto", 2.0, 6.0), *_CANDIDATES[:2])
    assert report.regrets(cell, "gloo") == []
    assert "| gloo | bf16 | – | – |" in report.render([], cell)
    assert "What auto loses" not in report.render([], _cell(("gloo plain", 4.0, 4.0)))


def test_choices_that_differ_are_counted() -> None:
    cell = _auto("bf16", ("auto", 2.0, 6.0), *_CANDIDATES)
    last = next(each for each in cell if each["side"] == "gloo auto" and each["pair"] == 1)
    last["chosen"] = "plain"
    assert "| gloo | bf16 (1 ×), plain (1 ×) |" in report.render([], cell)


def test_the_candidates_are_those_of_auto() -> None:
    pytest.importorskip("torch")
    from bagua_net.algorithms import ByteGrad, GradientAllReduce, _auto

    ways = {
        GradientAllReduce(): "plain",
        GradientAllReduce(wire="bfloat16"): "bf16",
        ByteGrad(bits=8, error_feedback=True): "ByteGrad 8",
    }
    assert tuple(ways[each] for each in _auto._CANDIDATES.values()) == report.CANDIDATES


def test_the_tables_are_those_of_the_readings() -> None:
    for path in sorted(STORED.glob("*.jsonl")):
        heads, readings = report.load(path)
        assert path.with_suffix(".md").read_text() == report.render(heads, readings), path.name
        assert report.lines(heads, readings) == path.read_text(), path.name
