# SPDX-License-Identifier: MIT
"""The codec's Triton kernels: interpreted on the CPU, compiled for a GPU, and run on a GPU if there is one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.support.tiers import variants

torch = pytest.importorskip("torch", reason="torch is not installed")

from bagua_net.algorithms._codec import Codec, codec, eager
from tests.algorithms import codec_checks
from tests.algorithms.codec_checks import different, inputs
from tests.support import programs

pytestmark = [pytest.mark.gate, pytest.mark.xdist_group("codec kernels")]  # they share a long run

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

CASES = list(codec_checks.cases())
#: For which GPU kernels are compiled here: compute capability 9.0, and threads in a warp.
GPU = ("cuda", 90, 32)

on_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason=f"torch {torch.__version__} sees no CUDA device here"
)


# ---- interpreted ----


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """What differs, of each case of this run."""
    asking = [item for item in request.session.items if "interpreted" in getattr(item, "fixturenames", ())]
    cases = [str(item.callspec.params["case"]) for item in asking if isinstance(item, pytest.Function)]
    command = [sys.executable, "-m", "tests.algorithms.interpreted", *cases]
    environment = os.environ | {"PYTHONPATH": programs.search_path(), "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", variants(*CASES[::5], nightly=[case for case in CASES if case not in CASES[::5]]))
def test_kernels_have_the_bits_of_eager_torch(interpreted: dict[str, list[str]], case: str) -> None:
    assert interpreted[case] == []


# ---- compiled, which needs no GPU ----

TYPES = {
    **{"x": "*bf16", "out": "*bf16", "residual": "*fp32", "divisor": "fp32"},
    **{"heads": "*fp32", "row_heads": "*fp32", "codes": "*u8", "row_codes": "*u8"},
    **{"count": "i64", "heads_stride": "i64", "codes_stride": "i64"},
}


def _assembly(name: str, form: Codec) -> str:
    """Of a kernel, compiled with the package's options."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from bagua_net.algorithms._codec import kernels, programs

    kernel = getattr(programs, name)
    constants = {
        key: value
        for key, value in {"ADDS": True, "ROWS": 3, **kernels.constants(form)}.items()
        if key in kernel.arg_names
    }
    types = {argument: TYPES.get(argument, "constexpr") for argument in kernel.arg_names}
    source = ASTSource(kernel, types, constexprs=constants)
    text: str = triton.compile(source, target=GPUTarget(*GPU), options=programs.OPTIONS).asm["ptx"]
    return text


def _operations(assembly: str) -> set[str]:
    return set(re.findall(r"^\s+(?:@!?%\w+\s+)?([a-z]\w*(?:\.\w+)+)", assembly, re.MULTILINE))


@pytest.mark.parametrize("name", ["encode", "decode", "decode_sum_encode"])
@pytest.mark.parametrize("form", [Codec(8), Codec(4, 96)], ids=str)
def test_a_gpu_rounds_each_operation_as_the_cpu_does(name: str, form: Codec) -> None:
    """To the nearest, nothing fused or approximated, subnormal numbers kept (no .ftz)."""
    found = {each for each in _operations(_assembly(name, form)) if each.endswith(".f32")}
    arithmetic = {each for each in found if each.split(".")[0] in ("add", "sub", "mul", "div", "fma", "mad", "rcp")}
    division = set() if name == "decode" else {"div.rn.f32", "sub.rn.f32"}
    assert arithmetic == {"add.rn.f32", "mul.rn.f32"} | division
    assert not [each for each in found if "ftz" in each or "approx" in each or "full" in each]


def test_a_gpu_rounds_to_bfloat16() -> None:
    assert [each for each in _operations(_assembly("decode", Codec())) if each.startswith("cvt.rn.bf16")]


# ---- on a GPU ----


@on_cuda
@pytest.mark.parametrize("case", variants(*CASES[::5], nightly=[case for case in CASES if case not in CASES[::5]]))
def test_cuda_has_the_bits_of_the_cpu(case: str) -> None:
    from bagua_net.algorithms._codec import kernels

    form, kind, count, offset = codec_checks.cases()[case]
    for implementation in (kernels, eager):
        assert different(implementation, form, inputs(kind, count), offset=offset, device="cuda") == []


@on_cuda
def test_the_kernels_serve_cuda() -> None:
    from bagua_net.algorithms._codec import kernels

    served: Any = codec._implementation(torch.device("cuda", 0))
    assert served is kernels


@on_cuda
def test_many_elements_on_cuda() -> None:
    """More than 2³¹ bytes of them: offsets have 64 bits."""
    form, count = Codec(4), 2**29 + 1
    x = torch.zeros(count, device="cuda")
    x[-1] = 3
    decoded = form.decode(form.encode(x), torch.empty_like(x))
    assert decoded[-1] == 3
    assert not decoded[:-1].any()
