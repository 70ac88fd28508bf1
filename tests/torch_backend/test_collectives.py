# SPDX-License-Identifier: MIT
"""Every collective, compared with gloo and with results from all inputs: any type, shape, layout and operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.ranks import Ranks
from tests.support.tiers import thirds, variants
from tests.torch_backend import cases
from tests.torch_backend.cases import Case

#: Examples of each collective among 2, 3 and 4 ranks.
_EXAMPLES = 12
#: Elements around a chunk of 512 KiB, for elements of one, four and eight bytes; and an odd number of chunks.
_LARGE = st.sampled_from([65_535, 65_537, 131_072, 131_073, 200_003, 524_287, 524_289, 800_001])
_SMALL_SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
_ODD_SHAPES = st.sampled_from([(), (0,), (3, 0, 2), (1,), (1, 1), (17, 3), (127,), (1023,), (4096, 3)])
_SHAPES = st.one_of(_SMALL_SHAPES, _ODD_SHAPES, _SMALL_SHAPES, _ODD_SHAPES, _LARGE.map(lambda count: (count,)))


def _dtypes(name: str, reduction: str) -> st.SearchStrategy[torch.dtype]:
    if not cases.COLLECTIVES[name].reduces:
        return st.sampled_from([*cases.INTEGERS, *cases.FLOATS, *cases.OTHERS])
    if reduction in cases.BITWISE:
        return st.sampled_from([*cases.INTEGERS, torch.bool])
    extra = [] if reduction == "AVG" else [torch.bool]
    if name == "all_reduce" and reduction in ("SUM", "AVG"):
        extra += cases.COMPLEX
    return st.sampled_from([*cases.INTEGERS, *cases.FLOATS, *extra])


@st.composite
def _cases(draw: st.DrawFn, name: str) -> Case:
    reduction = draw(st.sampled_from(cases.REDUCTIONS)) if cases.COLLECTIVES[name].reduces else "SUM"
    shapes = _SHAPES.filter(lambda shape: len(shape) > 0) if name in cases.SINGLE else _SHAPES
    return Case(
        name,
        draw(_dtypes(name, reduction)),
        draw(shapes),
        reduction,
        draw(st.sampled_from(cases.LAYOUTS)),
        draw(st.integers(0, 1)) if cases.COLLECTIVES[name].rooted else 0,
        draw(st.integers(0, 1000)),
        draw(st.booleans()),
    )


@pytest.mark.parametrize("name", thirds(cases.COLLECTIVES, 0))
def test_any_tensor(ranks: Ranks, name: str) -> None:
    @hypothesis_settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.too_slow], print_blob=False)
    @given(_cases(name))
    def check(case: Case) -> None:
        assert ranks.run(cases.compare, case) == [[]] * ranks.size

    check()


def _every_reduction() -> Iterator[Case]:
    for reduction in cases.REDUCTIONS:
        for dtype in (*cases.INTEGERS, *cases.FLOATS, torch.bool):
            if (reduction in cases.BITWISE and dtype.is_floating_point) or (reduction, dtype) == ("AVG", torch.bool):
                continue
            yield Case("all_reduce", dtype, (1001,), reduction, seed=3)


@pytest.mark.parametrize("name", [name for name, collective in cases.COLLECTIVES.items() if collective.reduces])
def test_every_type_and_reduction(ranks: Ranks, name: str) -> None:
    """One call for each, so that none depends on chance."""
    for case in _every_reduction():
        assert ranks.run(cases.compare, replace(case, collective=name)) == [[]] * ranks.size, case


@pytest.mark.parametrize("name", thirds(cases.COLLECTIVES, 1))
def test_many_chunks_from_and_to_everyone(ranks: Ranks, name: str) -> None:
    """Somewhat more than 5 MB, so that the pipelines fill; every rank is the root once."""
    for root in range(ranks.size if cases.COLLECTIVES[name].rooted else 1):
        case = Case(name, torch.float32, (1_300_003,), root=root, seed=root)
        assert ranks.run(cases.compare, case) == [[]] * ranks.size, case


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Ranks]:
    with Ranks(4, hosts=2) as ranks:
        yield ranks


@pytest.mark.parametrize("name", thirds(cases.COLLECTIVES, 2))
def test_ranks_of_two_hosts(two_hosts: Ranks, name: str) -> None:
    """Through shared memory and the network, and, for what is small, the network alone."""
    for count in (1, 1001, 1_300_003):
        assert two_hosts.run(cases.compare, Case(name, torch.float32, (count,), root=1, seed=count)) == [[]] * 4
    if cases.COLLECTIVES[name].reduces:
        for reduction, dtype in (("AVG", torch.int32), ("AVG", torch.bfloat16), ("PRODUCT", torch.float64)):
            assert two_hosts.run(cases.compare, Case(name, dtype, (100_003,), reduction, seed=5)) == [[]] * 4


_SETTINGS = [
    {"BAGUA_NET_MIN_NSTREAMS": "4", "BAGUA_NET_NSTREAMS": "4", "BAGUA_NET_MIN_CHUNKSIZE": "4K"},
    {"BAGUA_NET_THREADS": "0"},
    {"BAGUA_NET_THREADS": "2", "BAGUA_NET_ZEROCOPY": "1"},
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings", variants(_SETTINGS[-1], nightly=_SETTINGS[:-1]), ids=lambda settings: ",".join(settings)
)
def test_parameters_of_the_library(settings: dict[str, str]) -> None:
    """They apply as for NCCL and change no result."""
    with Ranks(3, settings) as ranks:
        for name in cases.COLLECTIVES:
            for count in (5, 400_003):
                assert ranks.run(cases.compare, Case(name, torch.int32, (count,), seed=count)) == [[]] * 3
