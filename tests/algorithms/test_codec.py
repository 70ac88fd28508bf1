# SPDX-License-Identifier: MIT
"""The codec: what it promises to those who send gradients, and that its implementations agree bit by bit."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given
from hypothesis import strategies as st

from bagua_net._native import library
from bagua_net.algorithms._codec import Codec, codec, eager, native
from tests.algorithms import codec_checks
from tests.algorithms.codec_checks import COUNTS, FINITE, FLT_MAX, FLT_MIN, FORMATS, KINDS, inputs, same

EPSILON = torch.finfo(torch.float32).eps
NAN = float("nan")

forms = st.sampled_from(FORMATS)
counts = st.one_of(st.sampled_from(COUNTS), st.integers(1, 6000))
seeds = st.integers(0, 2**16)
bits = pytest.mark.parametrize("bits", [8, 4])


def _round_trip(form: Codec, x: Any) -> Any:
    return form.decode(form.encode(x), torch.full((x.numel(),), 77.0))


# ---- the format ----


@given(form=forms, kind=st.sampled_from(KINDS), count=counts, seed=seeds, offset=st.integers(0, 3))
def test_the_library_and_eager_torch_agree(form: Codec, kind: str, count: int, seed: int, offset: int) -> None:
    assert codec_checks.different(native, form, inputs(kind, count, seed), offset=offset) == []


@given(form=forms, kind=st.sampled_from(KINDS), count=counts, seed=seeds, piece=st.sampled_from([1, 1000, 2048]))
def test_the_library_works_in_pieces(form: Codec, kind: str, count: int, seed: int, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_PIECE", piece)
        assert codec_checks.different(native, form, inputs(kind, count, seed)) == []


@given(form=forms, count=st.integers(0, 2**40))
def test_sizes_are_the_librarys(form: Codec, count: int) -> None:
    assert form.nbytes(count) == library.load_host().bnet_codec_bytes({8: 1, 4: 2}[form.bits], form.block, count)


@pytest.mark.parametrize(("bits", "codes"), [(8, bytes([0, 255]) * 16 + bytes([128])), (4, bytes([0xF0] * 16 + [8]))])
def test_the_bytes(bits: int, codes: bytes) -> None:
    """A block of a range of whole steps, and one of a single element."""
    top = 2**bits - 1
    encoded = Codec(bits, 32).encode(torch.tensor([0.0, top] * 16 + [3.0]))
    assert bytes(encoded.tolist()) == struct.pack("<4f", top / 2, 1, 3, 0) + codes


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_nothing_and_one_element(form: Codec, count: int) -> None:
    x = torch.full((count,), -3.5)
    encoded = form.encode(x)
    assert encoded.numel() == form.nbytes(count)
    assert same(_round_trip(form, x), x)
    assert same(form.decode_sum_encode(encoded[None], count), encoded)


# ---- the error ----


def _half_steps(form: Codec, x: Any) -> Any:
    """Of each element's block, in float64. Where a step would be subnormal, there is one code for the whole range."""
    missing = form.blocks(x.numel()) * form.block - x.numel()
    whole = torch.cat((x, x[-1:].expand(missing))).double().view(-1, form.block)
    extent = whole.amax(1) - whole.amin(1)
    half = torch.where(extent / form.top < 1.001 * FLT_MIN, extent / 2, extent / form.top / 2)
    rounding = 8 * EPSILON * whole.abs().amax(1) + 8 * 2.0**-149
    return (1.001 * half + rounding).repeat_interleave(form.block)[: x.numel()]


@given(form=forms, kind=st.sampled_from(FINITE), count=counts, seed=seeds)
def test_an_error_is_half_a_step_at_most(form: Codec, kind: str, count: int, seed: int) -> None:
    x = inputs(kind, count, seed)
    error = (_round_trip(form, x).double() - x.double()).abs()
    assert (error <= _half_steps(form, x)).all()


@bits
def test_the_least_element_does_not_become_the_largest(bits: int) -> None:
    """A code that wraps around decodes -1 to more than 1."""
    x = torch.tensor([-1.0, -0.5, 0.0, 1.0])
    decoded = _round_trip(Codec(bits), x)
    assert decoded.tolist() == pytest.approx(x.tolist(), abs=1 / (2**bits - 1) + 1e-6)
    assert decoded[0] == -1
    assert decoded[3] == 1


@pytest.mark.parametrize("value", [0.0, 1.0, -FLT_MAX, FLT_MAX, FLT_MIN, 3e-39, -(2.0**-149)])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_block_of_one_value_is_exact(form: Codec, value: float) -> None:
    x = torch.full((2 * form.block + 1,), value)
    assert (_round_trip(form, x) - x).abs().max() <= 2.0**-149  # the half of a subnormal number is rounded


@bits
def test_blocks_do_not_share_their_ranges(bits: int) -> None:
    """Layers whose gradients differ by decades keep theirs."""
    x = torch.cat([inputs("random", 512, seed) * 10.0**-seed for seed in range(6)])
    error = (_round_trip(Codec(bits), x) - x).view(6, 512).norm(dim=1) / x.view(6, 512).norm(dim=1)
    assert error.max() < {8: 0.01, 4: 0.2}[bits]


# ---- what is not finite ----


@bits
@pytest.mark.parametrize("value", [NAN, -NAN, float("inf"), -float("inf")])
def test_a_block_that_is_not_finite_decodes_to_nan(bits: int, value: float) -> None:
    form, x = Codec(bits, 64), inputs("random", 200)
    x[100] = value
    found = _round_trip(form, x).isnan()
    assert found[64:128].all()
    assert not found[:64].any()
    assert not found[128:].any()


@bits
@pytest.mark.parametrize("where", ["x", "residual"])
def test_such_a_block_keeps_its_residual(bits: int, where: str) -> None:
    form, x, residual = Codec(bits, 64), inputs("random", 200), torch.full((200,), 0.001)
    {"x": x, "residual": residual}[where][100] = float("inf")
    before = residual.clone()
    form.encode_with_residual(x, residual)
    assert same(residual[64:128], before[64:128])
    assert not (residual[:64] == before[:64]).any()
    assert not (residual[128:] == before[128:]).any()


@bits
def test_one_ranks_overflow_reaches_the_sum(bits: int) -> None:
    form, x = Codec(bits, 64), inputs("random", 64)
    good = form.encode(x)
    x[5] = float("inf")
    total = form.decode_sum_encode(torch.stack((good, form.encode(x), good)), 64)
    assert form.decode(total, torch.empty(64)).isnan().all()


# ---- the residual ----


@given(form=forms, kind=st.sampled_from(["random", "layers", "wide"]), count=counts)
def test_the_residual_is_what_decoding_does_not_give_back(form: Codec, kind: str, count: int) -> None:
    x, before = inputs(kind, count), inputs("random", count, 1) * 0.01
    residual = before.clone()
    encoded = form.encode_with_residual(x, residual)
    assert same(encoded, form.encode(x + before))
    assert same(residual, x + before - form.decode(encoded, torch.empty(count)))


@bits
def test_errors_do_not_add_up(bits: int) -> None:
    """Of a constant gradient, the sum of what is sent differs from the sum of the gradients by one step's error."""
    form, x = Codec(bits), inputs("random", 2000)
    residual, total = torch.zeros(2000), torch.zeros(2000, dtype=torch.float64)
    for _ in range(50):
        total += form.decode(form.encode_with_residual(x, residual), torch.empty(2000))
    assert ((total - 50 * x).abs() <= 2 * _half_steps(form, x)).all()


# ---- sums ----


@bits
@pytest.mark.parametrize("divisor", [1, 3])
def test_a_sum_is_that_of_the_ranks_in_their_order(bits: int, divisor: int) -> None:
    """In float32 it depends on the order: what is added to 1e8 is rounded."""
    form, count = Codec(bits, 64), 1000
    rows = torch.stack([form.encode(inputs("random", count) + offset) for offset in (1e8, -1e8, 0)])
    total = form.decode(rows[0], torch.empty(count))
    for row in rows[1:]:
        form.decode_add(row, total)
    found = form.decode_sum_encode(rows, count, divisor=divisor)
    assert same(found, form.encode(total / torch.full((count,), float(divisor))))
    assert not same(found, form.decode_sum_encode(rows.flip(0), count, divisor=divisor))


@bits
def test_a_mean_of_equals_is_one_of_them(bits: int) -> None:
    """Of three: a product with a third, rounded, would differ."""
    form = Codec(bits, 32)
    x = torch.tensor([1.0, 3.0, 5.0, 2.0**24 - 1]).repeat_interleave(32)
    rows = form.encode(x).repeat(3, 1)
    assert same(form.decode_sum_encode(rows, x.numel(), divisor=3), rows[0])


@bits
def test_the_owner_can_keep_a_residual(bits: int) -> None:
    form, count = Codec(bits, 64), 1000
    rows = torch.stack([form.encode(inputs("random", count, seed)) for seed in range(3)])
    before = inputs("random", count, 9) * 0.01
    residual, wanted = before.clone(), before.clone()
    total = form.decode(rows[0], torch.empty(count))
    form.decode_add(rows[2], form.decode_add(rows[1], total))
    found = form.decode_sum_encode(rows, count, residual=residual)
    assert same(found, form.encode_with_residual(total, wanted))
    assert same(residual, wanted)


# ---- tensors ----


@bits
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(bits: int, dtype: Any) -> None:
    form, x = Codec(bits, 64), inputs("random", 1000).to(dtype)
    encoded = form.encode(x)
    assert same(encoded, form.encode(x.float()))
    decoded = form.decode(encoded, torch.empty(1000))
    assert same(form.decode(encoded, torch.empty(1000, dtype=dtype)), decoded.to(dtype))
    assert same(form.decode_add(encoded, x.clone()), (x.float() + decoded).to(dtype))


def test_results_go_where_they_are_asked_for() -> None:
    form, x = Codec(), inputs("random", 700)
    out = torch.empty(form.nbytes(700), dtype=torch.uint8)
    decoded = torch.empty(700)
    assert form.encode(x, out) is out
    assert same(out, form.encode(x))
    assert form.decode(out, decoded) is decoded
    assert form.decode_add(out, decoded) is decoded
    again = torch.empty_like(out)
    assert form.decode_sum_encode(out[None], 700, again) is again
    assert same(again, form.decode_sum_encode(out[None], 700))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_are_taken_and_nothing_is_recorded(dtype: Any) -> None:
    form = Codec()
    weight = torch.nn.Parameter(inputs("random", 700).to(dtype))
    encoded = form.encode(weight)
    form.decode_add(encoded, weight)
    assert not encoded.requires_grad
    assert weight.is_leaf
    assert weight.grad_fn is None


def test_a_device_of_another_kind_has_eager_torch() -> None:
    form = Codec(4, 64)
    encoded = form.encode(torch.empty(1000, device="meta"))
    assert encoded.device.type == "meta"
    assert form.decode(encoded, torch.empty(1000, device="meta")).shape == (1000,)


# ---- bad input ----

X = torch.zeros(100)
ENCODED = Codec().encode(X)
ROWS = ENCODED.repeat(2, 1)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: Codec(bits=16), ValueError, "bits=16 is not possible; give 8 or 4"),
        (lambda: Codec(block=0), ValueError, "block=0 is not possible; give a multiple of 32, from 32 to 4096"),
        (lambda: Codec(block=100), ValueError, "block=100 is not possible"),
        (lambda: Codec(block=8192), ValueError, "block=8192 is not possible"),
        (lambda: Codec(block=64.0), ValueError, r"block=64\.0 is not possible"),  # type: ignore[arg-type]
        (lambda: Codec().encode([1.0]), TypeError, "x is of list; give a tensor"),
        (
            lambda: Codec().encode(X.double()),
            ValueError,
            r"x is of torch\.float64; give torch\.float32, torch\.float16",
        ),
        (lambda: Codec().encode(X.view(10, 10)), ValueError, r"x has the shape \(10, 10\) .* give a contiguous tensor"),
        (lambda: Codec().encode(X[::2]), ValueError, r"the strides \(2,\); give a contiguous tensor"),
        (
            lambda: Codec().encode(X, ENCODED[:-1]),
            ValueError,
            "out has 107 elements; an input of 100 elements with .* ",
        ),
        (lambda: Codec().encode(X, X), ValueError, r"out is of torch\.float32; give torch\.uint8"),
        (lambda: Codec().encode(X, ENCODED.to("meta")), ValueError, "out is on meta, and another tensor on cpu"),
        (lambda: Codec().encode_with_residual(X, X[:50]), ValueError, "residual has 50 elements; .* needs 100"),
        (lambda: Codec().encode_with_residual(X, X.half()), ValueError, r"residual is of torch\.float16"),
        (lambda: Codec().decode(ENCODED, X[:99]), ValueError, "encoded has 108 elements; .* needs 107"),
        (lambda: Codec(4).decode(ENCODED, X), ValueError, r"encoded has 108 .* Codec\(bits=4, block=512\) needs 58"),
        (lambda: Codec().decode(ENCODED, X.to("meta")), ValueError, "encoded is on cpu, and another tensor on meta"),
        (lambda: Codec().decode_add(ENCODED, X.int()), ValueError, r"out is of torch\.int32"),
        (lambda: Codec().decode_sum_encode(ENCODED, 100), ValueError, r"rows has the shape \(108,\)"),
        (lambda: Codec().decode_sum_encode(ROWS[:0], 100), ValueError, r"rows has the shape \(0, 108\)"),
        (lambda: Codec().decode_sum_encode(ROWS.t(), 100), ValueError, "give a row of contiguous bytes for each rank"),
        (lambda: Codec().decode_sum_encode(ROWS, 99), ValueError, "rows has 108 elements; a row of 99 .* needs 107"),
        (lambda: Codec().decode_sum_encode(ROWS, 100, divisor=0), ValueError, "divisor=0 is not possible"),
        (lambda: Codec().decode_sum_encode(ROWS, 100, divisor=NAN), ValueError, "divisor=nan is not possible"),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        call()
    assert str(caught.value).startswith("codec: ")
    assert "\n" not in str(caught.value)


# ---- Triton ----


@pytest.mark.nightly
def test_tensors_on_the_cpu_do_not_import_triton() -> None:
    program = (
        "import sys, torch; from bagua_net.algorithms._codec import Codec\n"
        "Codec().encode(torch.ones(9)); assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_triton_eager_torch_serves_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kernels", "programs"):
        monkeypatch.delitem(sys.modules, f"{codec.__package__}.{name}", raising=False)
        monkeypatch.delattr(sys.modules[str(codec.__package__)], name, raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert codec._for_cuda.__wrapped__(torch.device("cuda")) is eager


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_where_triton_does_not_run_eager_torch_serves_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="the codec runs in eager torch"):
        assert codec._for_cuda.__wrapped__(torch.device("cpu")) is eager
