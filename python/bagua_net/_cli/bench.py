# SPDX-License-Identifier: MIT
"""``bagua-net bench``: its options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from .. import _sizes
from .._bench.ranks.placement import Placement, PlacementInvalid, place
from .._bench.workload import models
from .._bench.workload.config import Config
from .._bench.workload.elements import MAX_RANKS, REDUCTIONS, TYPES
from .._bench.workload.ops import OPS
from .optional_value import OptionalValueCommand

_EMULATED = "emulated"
_OTHER = "nccl+other"
_TRANSPORTS = {
    "cpu": ("bagua", "bagua+u8", "bagua+u4", "nccl-socket", "gloo", "torch+bagua"),
    "cuda": ("nccl+bagua", "nccl"),
    _EMULATED: ("nccl+bagua", "nccl", _OTHER),
}
#: What turns each device on.
_OPTIONS = {"cpu": "--device cpu", "cuda": "--device cuda", _EMULATED: "--nccl"}
_DEVICES = ("cpu", "cuda")


def _one_of(names: Iterable[str]) -> Callable[[str], str]:
    known = tuple(names)

    def check(value: str) -> str:
        if value and value not in known:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(known)}")
        return value

    return check


def _bytes(text: str) -> int:
    try:
        return _sizes.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _transports(text: str, device: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in _TRANSPORTS[device]:
            known = "; ".join(f"with {_OPTIONS[kind]}: {', '.join(them)}" for kind, them in _TRANSPORTS.items())
            raise typer.BadParameter(f"{name!r} is not a network to compare; {known}")
    return names


def _with_codec(names: tuple[str, ...], codec: str, device: str) -> tuple[str, ...]:
    """The compressed allreduce beside the networks that are named, or beside the same network uncompressed."""
    if not codec:
        return names
    if device != "cpu":
        raise typer.BadParameter("codes are sent by the library's own collectives: --codec goes with --device cpu")
    return tuple(dict.fromkeys((f"bagua+{codec}", *(names or ("bagua",)))))


def _block(block: int) -> int:
    if block % 32:
        raise typer.BadParameter(f"{block} is no multiple of 32")
    return block


def _emulated_transports(names: tuple[str, ...], net_plugin: str) -> tuple[str, ...]:
    """Both of NCCL's, and the other plugin's where there is one: all of them can be measured wherever NCCL runs."""
    if _OTHER in names and not net_plugin:
        raise typer.BadParameter(f"{_OTHER} is the network of another plugin: name it with --net-plugin")
    if net_plugin and names and _OTHER not in names:
        raise typer.BadParameter(f"--net-plugin goes with {_OTHER}, which --transport leaves out")
    return names or tuple(name for name in _TRANSPORTS[_EMULATED] if name != _OTHER or net_plugin)


def _device(device: str, nccl: str, net_plugin: str, dev: int) -> str:
    """The device of the run: that of --device, or an emulated one for --nccl."""
    if not nccl:
        if net_plugin:
            raise typer.BadParameter("--net-plugin is measured through NCCL: it goes with --nccl")
        return device
    if device == "cuda":
        raise typer.BadParameter("--device cuda needs a GPU, and --nccl is NCCL without one: leave one of them out")
    if dev:
        raise typer.BadParameter("NCCL chooses the network's device itself: --dev does not go with --nccl")
    return _EMULATED


def _check_average(redop: str, op: str, dtype: str, nranks: int) -> None:
    """NCCL multiplies by a fraction instead of dividing; only the halves, quarters … have an exact one."""
    if redop == "avg" and OPS[op].reduces and not _is_integer(dtype) and nranks & (nranks - 1):
        raise typer.BadParameter(
            f"NCCL averages {dtype} by multiplying with 1/{nranks}, which is not exact, and the checks are; "
            "take 2, 4, 8 … ranks, an integer type, or another --redop"
        )


def _is_integer(dtype: str) -> bool:
    return "int" in dtype


def _sweep(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    try:
        return tuple(_sizes.sweep(smallest, largest, factor))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _place(ranks: int | None, rank: int | None, rendezvous: str | None) -> Placement:
    try:
        placement = place(ranks, rank, rendezvous)
    except PlacementInvalid as error:
        raise typer.BadParameter(str(error)) from None
    if placement.nranks < 2:
        raise typer.BadParameter(f"nothing travels between fewer than 2 ranks, and {placement.nranks} was asked for")
    if placement.nranks > MAX_RANKS:
        raise typer.BadParameter(f"the checks are exact for up to {MAX_RANKS} ranks, not for {placement.nranks}")
    return placement


# ---- the options, in the order of --help; the short ones are those of nccl-tests. torchrun rejects --max as ambiguous
# even after the name of its program: use -e, or "--" before the program ----

Ranks = Annotated[int | None, typer.Option(help="Processes; 2 on this machine unless torchrun says otherwise.")]
Operation = Annotated[str, typer.Option(callback=_one_of(OPS), help=", ".join(OPS))]
Smallest = Annotated[str, typer.Option("--min", "-b", help="First size in bytes; K, M and G are suffixes.")]
Largest = Annotated[str, typer.Option("--max", "-e", help="Last size.")]
Factor = Annotated[int, typer.Option("--factor", "-f", help="From one size to the next.")]
Dtype = Annotated[str, typer.Option(callback=_one_of(TYPES), help=", ".join(TYPES))]
Redop = Annotated[str, typer.Option(callback=_one_of(REDUCTIONS), help=", ".join(REDUCTIONS))]
Model = Annotated[
    str,
    typer.Option(
        callback=_one_of(models.NAMES),
        help=f"The gradients of one training step, in DDP's buckets, instead of sizes: {', '.join(models.NAMES)}",
    ),
]
Transport = Annotated[
    str,
    typer.Option(
        help=f"Networks to compare, between commas: {', '.join(_TRANSPORTS['cpu'])} "
        f"(with --device cuda: {', '.join(_TRANSPORTS['cuda'])}; with --nccl: {', '.join(_TRANSPORTS[_EMULATED])}); "
        "default: all that are available except torch+bagua and those of --codec."
    ),
]
Device = Annotated[
    str, typer.Option(callback=_one_of(_DEVICES), help="cpu: host memory. cuda: real NCCL, through torch.")
]
NcclOption = Annotated[
    str,
    typer.Option(
        "--nccl",
        metavar="[auto|PATH]",
        help="NCCL's own code without a GPU: this libnccl.so.2, or auto, the one that a job here would use. This "
        "processor plays the GPU's part.",
    ),
]
NetPlugin = Annotated[
    str, typer.Option(metavar="PATH", help="With --nccl: one more network, that of any other plugin for NCCL.")
]
Codec = Annotated[
    str,
    typer.Option(
        callback=_one_of(("u8", "u4")),
        help="An allreduce of float32 (sum or avg) that sends codes, u8: of 8 bits for each element, or u4: of 4. It "
        "is measured beside bagua, or what --transport names.",
    ),
]
BlockSize = Annotated[
    int,
    typer.Option("--block", min=32, max=4096, callback=_block, help="Elements with a range of their own, in codes."),
]
Iters = Annotated[int, typer.Option(min=0, help="Calls per round; 0: what fits into half a minute in all.")]
Warmup = Annotated[int, typer.Option(min=1, help="Calls before the first round.")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns of each network at each size.")]
Interface = Annotated[
    str | None, typer.Option(help="Interface, as NCCL_SOCKET_IFNAME takes it; loopback for ranks of one machine.")
]
Dev = Annotated[int, typer.Option(min=0, help="The network's device, where it offers several.")]
Rendezvous = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where ranks of several hosts meet: rank 0's host.")
]
Rank = Annotated[int | None, typer.Option(help="This process's number, with --rendezvous.")]
Timeout = Annotated[float, typer.Option(min=1, max=86400, help="Seconds without progress that end the run.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every figure, with its spread, to this file.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw the figures to this file (needs matplotlib).")]


def bench(
    ranks: Ranks = None,
    op: Operation = "allreduce",
    smallest: Smallest = "4",
    largest: Largest = "64M",
    factor: Factor = 4,
    dtype: Dtype = "float32",
    redop: Redop = "sum",
    model: Model = "",
    transport: Transport = "",
    device: Device = "cpu",
    nccl: NcclOption = "",
    net_plugin: NetPlugin = "",
    codec: Codec = "",
    block: BlockSize = 512,
    iters: Iters = 0,
    warmup: Warmup = 1,
    rounds: Rounds = 5,
    ifname: Interface = None,
    dev: Dev = 0,
    rendezvous: Rendezvous = None,
    rank: Rank = None,
    timeout: Timeout = 120,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Measure collectives between processes over each network.

    BaguaNet and the other networks that are here take turns in the same processes, and every result is checked. The
    columns are those of nccl-tests.
    """
    from .._bench import run  # its imports would slow down the other commands

    if model and op != "allreduce":
        raise typer.BadParameter("a model's gradients are reduced: --model goes with --op allreduce only")
    placement = _place(ranks, rank, rendezvous)
    device = _device(device, nccl, net_plugin, dev)
    names = _with_codec(_transports(transport, device), codec, device)
    if device == _EMULATED:
        names = _emulated_transports(names, net_plugin)
        _check_average(redop, op, dtype, placement.nranks)
    config = Config(
        nranks=placement.nranks,
        op=op,
        dtype=dtype,
        redop=redop,
        sizes=() if model else _sweep(_bytes(smallest), _bytes(largest), factor),
        model=model,
        transports=names,
        device=device,
        nccl=nccl,
        net_plugin=net_plugin,
        dev=dev,
        block=block,
        iters=iters,
        warmup=warmup,
        rounds=rounds,
        timeout=timeout,
    )
    outputs = run.Outputs(json_file, plot_file, ["bagua-net", *sys.argv[1:]])
    if not run.run(config, placement, ifname, outputs):
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Adds the command ``bench``."""
    app.command(cls=OptionalValueCommand)(bench)
