# SPDX-License-Identifier: MIT
"""The parts of the benchmark that need no processes: sizes, buckets, data, figures, sentences, placement."""

from __future__ import annotations

import math
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagua_net import _sizes
from bagua_net._bench import run
from bagua_net._bench.output import plot, summary
from bagua_net._bench.ranks.launch import lanes
from bagua_net._bench.ranks.placement import PlacementInvalid, place
from bagua_net._bench.transports import gloo, interface_choice
from bagua_net._bench.transports.base import Place
from bagua_net._bench.workload import elements, models
from bagua_net._bench.workload.config import Config
from bagua_net._bench.workload.ops import OPS
from bagua_net._bench.workload.result import Row
from bagua_net._machine import interfaces
from tests.support.tiers import variants

# ---- sizes ----


@given(st.integers(1, 1 << 45))
def test_a_size_reads_back_as_it_is_shown(size: int) -> None:
    assert _sizes.parse(_sizes.show(size)) == size


@pytest.mark.parametrize(
    ("text", "size"), [("4", 4), ("64K", 65536), ("64kib", 65536), (" 1 MB ", 1 << 20), ("2G", 2 << 30)]
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert _sizes.parse(text) == size


@pytest.mark.parametrize("text", ["", "0", "-4", "4X", "K", "1.5M", "0x10", "4 4"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        _sizes.parse(text)


@given(st.integers(1, 1000), st.integers(0, 10**9), st.integers(2, 100))
def test_a_sweep_stays_within_its_bounds(smallest: int, more: int, factor: int) -> None:
    swept = _sizes.sweep(smallest, smallest + more, factor)
    assert swept[0] == smallest
    assert all(b == a * factor for a, b in pairwise(swept))
    assert swept[-1] <= smallest + more < swept[-1] * factor


# ---- models ----


@pytest.mark.parametrize(
    ("model", "total"),
    [("vgg16", 138_357_544), ("resnet50", 25_557_032), ("bert-large", 335_141_888), ("gpt2", 124_439_808)],
)
def test_a_model_has_its_well_known_number_of_parameters(model: str, total: int) -> None:
    assert sum(models.parameters(model)) == total


@given(st.lists(st.integers(1, 20_000_000), min_size=1, max_size=60), st.sampled_from([2, 4, 8]))
def test_buckets_are_closed_by_the_gradient_that_fills_them(counts: list[int], size: int) -> None:
    found = models.buckets(counts, size)
    assert sum(found) == sum(counts)
    boundaries = set(accumulate(reversed(counts)))
    assert set(accumulate(found)) <= boundaries
    limits = [models.FIRST_BUCKET] + [models.BUCKET] * len(found)
    assert all(bucket * size >= limit for bucket, limit in zip(found[:-1], limits, strict=False))
    for end, bucket, limit in zip(accumulate(found), found, limits, strict=False):
        last = max((b for b in boundaries | {0} if b < end), default=0)
        assert (last - (end - bucket)) * size < limit  # without its last gradient it is not full


@pytest.mark.parametrize("model", models.NAMES)
def test_buckets_are_those_of_torch(model: str) -> None:
    torch = pytest.importorskip("torch", reason="torch, whose buckets these are, is not installed")
    counts = models.parameters(model)
    gradients = [torch.empty(count, device="meta") for count in reversed(counts)]
    assigned, _ = torch.distributed._compute_bucket_assignment_by_size(gradients, [models.FIRST_BUCKET, models.BUCKET])
    expected = [sum(gradients[index].numel() for index in bucket) for bucket in assigned]
    assert models.buckets(counts, 4) == expected


# ---- data ----


def decode(stream: elements.Stream) -> list[float]:
    element = stream.element
    raw = stream.period
    if element.name == "bfloat16":
        raw = b"".join(b"\0\0" + raw[at : at + 2] for at in range(0, len(raw), 2))
    return list(struct.unpack(f"<{elements.PERIOD}{element.format}", raw))


REDUCE: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "avg": lambda column: sum(column) / len(column),
}


@pytest.mark.gate
@pytest.mark.parametrize("nranks", variants(1, 3, 16, nightly=[2, 7, elements.MAX_RANKS]))
@pytest.mark.parametrize("redop", elements.REDUCTIONS)
@pytest.mark.parametrize("dtype", elements.TYPES)
def test_every_result_is_exact_in_its_type(dtype: str, redop: str, nranks: int) -> None:
    element = elements.TYPES[dtype]
    columns = list(zip(*(decode(s) for s in elements.inputs(element, redop, nranks)), strict=True))
    expected = decode(elements.reduced(element, redop, nranks))
    for column, value in zip(columns, expected, strict=True):
        if redop == "prod":
            product = 1.0
            for factor in column:
                product *= factor
            assert value == product
        else:
            assert value == REDUCE[redop](column)
        assert sum(abs(part) for part in column) <= element.largest or redop == "prod"
        assert value == int(value) <= element.largest


def test_ranks_have_different_data() -> None:
    for redop in elements.REDUCTIONS:
        periods = [s.period for s in elements.inputs(elements.TYPES["float32"], redop, 3)]
        assert len(set(periods)) == 3, redop


@given(st.sampled_from(sorted(elements.TYPES)), st.integers(0, 1000), st.integers(1, 5000), st.integers(0, 10**9))
def test_one_wrong_element_is_one_wrong_element(dtype: str, start: int, count: int, place: int) -> None:
    element = elements.TYPES[dtype]
    stream = elements.inputs(element, "sum", 2)[0]
    memory = memoryview(bytearray(count * element.size))
    stream.fill(memory, start, count)
    assert stream.wrong(memory, start, count) == 0
    memory[place % len(memory)] ^= 0x40
    assert stream.wrong(memory, start, count) == 1


@pytest.mark.parametrize("dtype", elements.TYPES)
@pytest.mark.parametrize("pages", [1, 2, 16, 255, 256])
def test_data_in_the_wrong_place_does_not_pass(dtype: str, pages: int) -> None:
    element = elements.TYPES[dtype]
    for stream in elements.inputs(element, "sum", elements.MAX_RANKS if dtype == "int8" else 2):
        count = 4096 // element.size
        memory = memoryview(bytearray(4096))
        stream.fill(memory, pages * count, count)
        assert stream.wrong(memory, 0, count) > count // 10


@pytest.mark.parametrize(("change", "beyond"), [(0, 0), (0.99, 0), (-0.99, 0), (1.01, 1), (-1.01, 1), (math.nan, 1)])
def test_what_codes_may_lose_is_not_wrong(change: float, beyond: int) -> None:
    element = elements.TYPES["float32"]
    stream, most = elements.reduced(element, "sum", 2), elements.tolerance(element, "sum", 2, 15)
    memory = memoryview(bytearray(400_000 * element.size))
    stream.fill(memory, 7, 400_000)
    numbers = memory.cast("f")
    numbers[300_000] += change * most
    assert stream.beyond(memory, 7, 400_000, most) == beyond


@pytest.mark.parametrize("redop", ["sum", "avg"])
@pytest.mark.parametrize("nranks", [2, 3, 16])
def test_codes_lose_little_of_the_data(redop: str, nranks: int) -> None:
    """Elements are up to 15: eight bits must not let a wrong average pass."""
    most = elements.tolerance(elements.TYPES["float32"], redop, nranks, 255)
    assert 0 < most < (0.1 if redop == "avg" else 0.1 * nranks)


# ---- figures ----


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("allreduce", 1.5),
        ("reduce_scatter", 0.75),
        ("all_gather", 0.75),
        ("broadcast", 1),
        ("all_to_all", 0.75),
        ("sendrecv", 1),
    ],
)
def test_bus_bandwidth_counts_as_nccl_tests_does(op: str, factor: float) -> None:
    row = a_row("x", [0.5], size=4_000_000_000, op=op, nranks=4)
    assert row.algbw == pytest.approx(8)
    assert row.busbw == pytest.approx(8 * factor)


@given(st.sampled_from(sorted(OPS)), st.integers(1, 16), st.integers(1, 1 << 22), st.sampled_from([1, 2, 4, 8]))
def test_a_count_never_exceeds_its_size(op: str, nranks: int, size: int, element: int) -> None:
    operation = OPS[op]
    count = operation.count(size, nranks, element)
    smallest = element * (nranks if operation.per_rank else 1)
    assert operation.size(count, nranks, element) <= max(size, smallest)
    assert max(operation.send_count(count, nranks), operation.receive_count(count, nranks)) * element == (
        operation.size(count, nranks, element)
    )


@given(st.sampled_from(sorted(OPS)), st.integers(1, 9), st.integers(1, 100))
def test_a_result_fills_the_receive_buffer(op: str, nranks: int, count: int) -> None:
    for rank in range(nranks):
        parts = OPS[op].result(rank, nranks, count)
        assert sum(part.count for part in parts) == OPS[op].receive_count(count, nranks)


def test_sizes_that_come_to_the_same_count_are_measured_once() -> None:
    config = Config(nranks=4, op="all_gather", sizes=(4, 16, 64))
    assert [workload.counts for workload in config.workloads()] == [(1,), (4,)]


def test_the_heading_says_the_sizes_of_the_rows() -> None:
    config = Config(nranks=4, op="all_gather", sizes=(4, 16, 70))
    assert run._load_text(config) == "all_gather from 16 B to 64 B"


def test_a_config_travels_as_json() -> None:
    config = Config(nranks=3, op="broadcast", sizes=(4, 8), transports=("bagua",), timeout=7.5)
    assert Config.from_json(config.to_json()) == config


_WARNING = "NET/BaguaNet: waiting for 10.0.0.2:7 since 60 s"
_SLOWER = "bagua_net: the ranks of a host cannot share memory and use TCP, which is slower"
_ERROR = f"rank 0 lost rank 1: {_WARNING}"  # which the launcher says as its own
_OF_NCCL = "node0:7:8 [0] NCCL WARN socketPollConnect: connect returned Connection refused"


@pytest.mark.parametrize(
    ("level", "passed"),
    [
        (None, [_WARNING, _SLOWER]),  # which the library writes where nobody sees its log
        ("", [_WARNING, _SLOWER]),
        ("VERSION", [_WARNING, _SLOWER, _ERROR, _OF_NCCL]),
        ("WARN", [_WARNING, _SLOWER, _ERROR, _OF_NCCL]),
        ("warn", [_WARNING, _SLOWER, _ERROR, _OF_NCCL]),
        ("ABORT", [_WARNING, _SLOWER, _ERROR, _OF_NCCL]),
    ],
)
def test_what_ranks_write_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str | None, passed: list[str]
) -> None:
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    if level is not None:
        monkeypatch.setenv("NCCL_DEBUG", level)
    for line in (_WARNING, _SLOWER, _ERROR, _OF_NCCL):
        run._pass_on(line)
    assert capsys.readouterr().err.splitlines() == passed


def test_what_is_measured_on_request_alone_is_left_out_otherwise() -> None:
    named = ("gloo", "torch+bagua")
    assert [lane.names for lane in lanes(Config(nranks=2))] == [("bagua", "nccl-socket", "gloo")]
    assert [lane.names for lane in lanes(Config(nranks=2, transports=named))] == [("gloo",), ("torch+bagua",)]


@pytest.mark.parametrize(("already", "chosen"), [(None, "lo"), ("eth7", "eth7")])
def test_gloo_goes_where_the_ranks_have_met(monkeypatch: pytest.MonkeyPatch, already: str | None, chosen: str) -> None:
    """Its default is the address of this host's name."""
    opened: list[tuple[str, Place]] = []
    monkeypatch.setattr(gloo, "TorchTransport", lambda backend, config, place: opened.append((backend, place)))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", already or "")
    if already is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    here = Place(0, "127.0.0.1")
    gloo.GLOO.open(Config(nranks=2), here)
    assert opened == [("gloo", here)]
    assert os.environ["GLOO_SOCKET_IFNAME"] == chosen


def test_gloo_gets_an_interface_where_the_ranks_met_at_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at IPv6, where the one that is known is IPv4."""
    monkeypatch.setattr(gloo, "TorchTransport", lambda *_: None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    gloo.GLOO.open(Config(nranks=2), Place(0, "2001:db8::7"))
    assert os.environ.get("GLOO_SOCKET_IFNAME") in [row.name for row in interfaces.scan() if not row.reason]


@pytest.mark.parametrize(("given", "for_gloo"), [("eth", "eth0"), ("=eth", "eth"), ("eth1", "eth1"), ("ib", "ib")])
def test_gloo_takes_whole_names(monkeypatch: pytest.MonkeyPatch, given: str, for_gloo: str) -> None:
    """To NCCL a name is a prefix."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "eth1")])
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "BAGUA_NET_ADDRESS_PREFIX"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    interface_choice.use_interface(given, local=False)
    assert (os.environ["NCCL_SOCKET_IFNAME"], os.environ["GLOO_SOCKET_IFNAME"]) == (given, for_gloo)


# ---- sentences ----


def a_row(
    transport: str, rounds: list[float], size: int = 1024, op: str = "allreduce", nranks: int = 2, wrong: int = 0
) -> Row:
    return Row("", op, nranks, size, size // 4, "float32", "sum", transport, rounds, 1, wrong, rounds)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([1, 1, 1, 1, 1], [2, 2, 2, 2, 2], "faster"),
        ([1, 1, 1, 1, 9], [2, 2, 2, 2, 2], "faster"),
        ([2, 2, 2, 2, 2], [1, 1, 1, 1, 9], "slower"),
        ([1, 1, 3, 3, 1], [2, 2, 2, 2, 2], "unclear"),
        ([1, 1, 1], [2, 2, 2], "faster"),
        ([1, 1], [2, 2], "unclear"),
        ([1, 1, 1, 1, 1], [1.01, 1.01, 1.01, 1.01, 1.01], "unclear"),
        ([1.01, 1.01, 1.01, 1.01, 1.01], [1, 1, 1, 1, 1], "unclear"),
    ],
)
def test_a_verdict_needs_rounds_that_agree(ours: list[float], theirs: list[float], verdict: str) -> None:
    assert summary.compare(a_row("bagua", ours), a_row("gloo", theirs)).verdict == verdict


def test_sentences_name_the_sizes_where_we_lose() -> None:
    times = [(4, 2.0, 1.0), (16, 2.0, 1.0), (64, 1.0, 1.0), (256, 1.0, 1.5), (1024, 1.0, 3.0)]
    rows = []
    for size, ours, theirs in times:
        rows += [a_row("bagua", [ours] * 5, size), a_row("nccl-socket", [theirs] * 5, size)]
    text = list(summary.sentences(rows, "between 2 ranks", {"gloo": "torch is not installed here"}))
    assert text[0] == "Measured: allreduce of float32 between 2 ranks; every result was checked, 0 wrong."
    assert (
        "bagua against nccl-socket: slower from 4 B to 16 B (0.50 × its speed); no clear difference at 64 B; "
        "faster from 256 B to 1 KiB (1.50 to 3.00 × its speed)." in text
    )
    assert text[-1] == "Not compared: gloo (torch is not installed here)."


def test_another_plugin_is_compared_where_ours_is_left_out() -> None:
    rows = [a_row("nccl", [2.0] * 5), a_row("nccl+other", [1.0] * 5)]
    text = list(summary.sentences(rows, "between 2 ranks", {}))
    assert text[-1] == "nccl+other against nccl: faster at 1 KiB (2.00 × its speed)."


def test_a_model_is_compared_by_its_name() -> None:
    ours, theirs = (
        Row("gpt2", "allreduce", 2, 497_759_232, 124_439_808, "float32", "sum", name, [seconds] * 5, 1, 0, [0.1] * 5)
        for name, seconds in (("bagua", 0.2), ("gloo", 0.3))
    )
    text = list(summary.sentences([ours, theirs], "between 2 ranks", {}))
    assert text[1] == "bagua: the gradients of gpt2 in 200.0 ms per step, 2.49 GB/s."
    assert text[-1] == "bagua against gloo: faster on gpt2 (1.50 × its speed)."


def test_a_busy_machine_gives_no_verdict() -> None:
    rows = [a_row("bagua", [2.0] * 5), a_row("gloo", [1.0] * 5)]
    text = list(summary.sentences(rows, "between 2 ranks", {}, crowded=True))
    assert text[-1] == "bagua against gloo: no verdict: the machine was busy."


def test_sentences_say_first_that_results_were_wrong() -> None:
    first = next(summary.sentences([a_row("bagua", [1.0], wrong=7)], "between 2 ranks", {}))
    assert "7 ELEMENTS ARE WRONG" in first


# ---- placement ----

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("ranks", "cores", "others", "said"),
    [
        (2, 2, 0.1, ""),
        (2, 8, 5.9, ""),
        (4, 2, 0.0, "4 ranks shared 2 processor cores"),
        (2, 2, 0.6, "busy: other programs took 0.6 of 2 processor cores"),
        (2, 8, 6.1, "busy: other programs took 6.1 of 8 processor cores"),
    ],
)
def test_figures_of_a_crowded_machine_are_qualified(ranks: int, cores: int, others: float, said: str) -> None:
    (sentence,) = summary.contention(ranks, cores, others) or [""]
    assert bool(sentence) == bool(said)
    assert re.search(said, sentence)


def test_a_container_s_limit_does_not_make_its_neighbours_a_load() -> None:
    """They use processors of the machine, of which the container may use some at a time, on any."""
    assert summary.contention(2, 64, 10.0, 8) == []
    assert not summary.busy(2, 64, 10.0)
    (sentence,) = summary.contention(9, 64, 0.0, 8)
    assert "9 ranks shared 8 processor cores" in sentence


def test_two_local_ranks_without_being_told() -> None:
    placement = place(None, None, None, {})
    assert (placement.nranks, placement.ranks, placement.local) == (2, [0, 1], True)


def test_each_local_run_has_a_token_of_its_own() -> None:
    assert place(2, None, None, {}).token != place(2, None, None, {}).token


def test_torchrun_s_variables_make_this_one_rank() -> None:
    placement = place(None, None, None, {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"})
    assert (placement.nranks, placement.ranks, placement.local) == (8, [3], False)
    assert (placement.host, placement.port) == ("10.0.0.1", 19501)


@given(st.integers(1, 65535))
def test_the_port_under_torchrun_is_neither_its_own_nor_a_source_port(master: int) -> None:
    port = place(None, None, None, {**TORCHRUN, "MASTER_PORT": str(master)}).port
    assert port != master
    assert 1024 < port < 32768


def test_torchrun_s_ranks_meet_where_they_are_told() -> None:
    placement = place(None, None, "10.0.0.9:7000", TORCHRUN)
    assert (placement.ranks, placement.nranks, placement.host, placement.port) == ([3], 8, "10.0.0.9", 7000)


def test_torchrun_on_one_host_is_local() -> None:
    assert place(None, None, None, {**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}).local


def test_the_ranks_of_a_host_are_numbered_as_torchrun_says() -> None:
    assert place(None, None, None, {**TORCHRUN, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}).on_host == (1, 2)
    assert place(None, None, None, TORCHRUN).on_host == (0, 1)
    assert place(3, None, None, {}).on_host == (0, 3)


@pytest.mark.parametrize(
    ("index", "of", "said"),
    [
        ("2", "2", "LOCAL_RANK=2 is not one of LOCAL_WORLD_SIZE=2"),
        ("-1", "2", "LOCAL_RANK=-1 is not one of"),
        ("0", "0", "LOCAL_RANK=0 is not one of LOCAL_WORLD_SIZE=0"),
        ("0", "two", "LOCAL_WORLD_SIZE=two is not a number"),
    ],
)
def test_bad_numbers_within_a_host_are_refused(index: str, of: str, said: str) -> None:
    with pytest.raises(PlacementInvalid, match=said):
        place(None, None, None, {**TORCHRUN, "LOCAL_RANK": index, "LOCAL_WORLD_SIZE": of})


def test_ranks_given_by_hand_win_over_torchrun_s_variables() -> None:
    assert place(4, None, None, TORCHRUN).ranks == [0, 1, 2, 3]


def test_invocations_of_one_run_share_a_token_and_other_runs_do_not() -> None:
    tokens = {
        place(2, 0, "10.0.0.1:29600", {}).token,
        place(2, 1, "10.0.0.1:29600", {}).token,
        place(2, 1, "10.0.0.1:29601", {}).token,
        place(3, 1, "10.0.0.1:29600", {}).token,
        place(2, 1, "10.0.0.1:29600", {"BAGUA_NET_BENCH_TOKEN": "a secret"}).token,
    }
    assert len(tokens) == 4


def test_an_ipv6_rendezvous() -> None:
    assert place(2, 0, "[fd00::1]:29600", {}).host == "fd00::1"


@pytest.mark.parametrize(
    ("nranks", "rank", "rendezvous", "environment", "reason"),
    [
        (2, None, "h:1", {}, "--rank and --ranks"),
        (None, 0, "h:1", {}, "--rank and --ranks"),
        (2, 0, None, {}, "--rendezvous"),
        (2, 2, "h:1", {}, "0 to 1"),
        (2, 0, "h", {}, "HOST:PORT"),
        (2, 0, "h:0", {}, "HOST:PORT"),
        (2, 0, ":80", {}, "HOST:PORT"),
        (None, None, None, {**TORCHRUN, "RANK": "three"}, "RANK=three"),
        (None, None, None, {**TORCHRUN, "WORLD_SIZE": "1"}, "WORLD_SIZE=1: the benchmark takes 2 to 120 ranks"),
        (None, None, "h:1", {**TORCHRUN, "WORLD_SIZE": "121"}, "WORLD_SIZE=121"),
    ],
)
def test_a_placement_that_makes_no_sense_says_why(
    nranks: int | None, rank: int | None, rendezvous: str | None, environment: dict[str, str], reason: str
) -> None:
    with pytest.raises(PlacementInvalid, match=reason):
        place(nranks, rank, rendezvous, environment)


# ---- missing packages ----


def test_a_missing_matplotlib_is_got_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not as an extra of this package, which may be a clone that is in no index."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    with pytest.raises(plot.PlotUnavailable, match=r"pip install matplotlib$"):
        plot.check(Path("x.svg"))


def test_a_picture_of_no_known_kind_is_refused_before_the_run() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for name in ("x.svg", "x.PNG", "x"):
        plot.check(Path(name))
    with pytest.raises(plot.PlotUnavailable, match=r"^x\.foo: not a kind of file that matplotlib writes: .*, svg"):
        plot.check(Path("x.foo"))
