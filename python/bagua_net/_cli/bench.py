# SPDX-License-Identifier: MIT
"""``bagua-net bench`` and its subcommands: their options."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .. import _sizes
from .._bench.ranks.placement import Placement, PlacementInvalid, place
from .._bench.workload import models
from .._bench.workload.config import Config
from .._bench.workload.elements import MAX_RANKS, REDUCTIONS, TYPES
from .._bench.workload.ops import OPS

Op = Enum("Op", {name: name for name in OPS}, type=str)  # type: ignore[misc]
Type = Enum("Type", {name: name for name in TYPES}, type=str)  # type: ignore[misc]
Reduction = Enum("Reduction", {name: name for name in REDUCTIONS}, type=str)  # type: ignore[misc]
Gradient = Enum("Gradient", {name: name for name in ("float32", "float16", "bfloat16")}, type=str)  # type: ignore[misc]
ModelName = Enum("ModelName", {name: name for name in models.NAMES}, type=str)  # type: ignore[misc]
#: Networks for host memory, and NCCL's.
Network = Enum("Network", {name: name for name in ("bagua", "nccl-socket", "gloo", "torch+bagua")}, type=str)  # type: ignore[misc]
NcclNetwork = Enum("NcclNetwork", {name: name for name in ("nccl+bagua", "nccl")}, type=str)  # type: ignore[misc]
Code = Enum("Code", {name: name for name in ("u8", "u4")}, type=str)  # type: ignore[misc]

_ALLREDUCE, _FLOAT32, _SUM = Op("allreduce"), Type("float32"), Reduction("sum")
_RESNET50, _GRADIENT = ModelName("resnet50"), Gradient("float32")

_WORK = "What is measured"
_RANKS = "Ranks and where they meet"
_REPETITIONS = "Repetitions"
_FILES = "Files"
_JOB = "What is calculated"
_LINK = "The link of each rank"

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
#: Of a model: more than any has.
_MOST_PARAMETERS = 1e12
#: Of a link: a million of them are no link of today.
_FEWEST_BITS = 1e6


def _listed(kind: type[Enum]) -> str:
    return ", ".join(str(one.value) for one in kind)


# ---- options of several commands; the short ones are those of nccl-tests. torchrun rejects --max as ambiguous even
# after the name of its program: use -e, or "--" before the program ----

Operation = Annotated[Op, typer.Option(metavar="OP", help=f"{_listed(Op)}.", rich_help_panel=_WORK)]
Smallest = Annotated[
    str,
    typer.Option("--min", "-b", metavar="SIZE", help="First size in bytes; suffixes K, M, G.", rich_help_panel=_WORK),
]
Largest = Annotated[str, typer.Option("--max", "-e", metavar="SIZE", help="Last size.", rich_help_panel=_WORK)]
Factor = Annotated[
    int, typer.Option("--factor", "-f", metavar="N", help="From one size to the next.", rich_help_panel=_WORK)
]
Dtype = Annotated[Type, typer.Option(metavar="TYPE", help=f"{_listed(Type)}.", rich_help_panel=_WORK)]
Redop = Annotated[Reduction, typer.Option(metavar="OP", help=f"{_listed(Reduction)}.", rich_help_panel=_WORK)]
Transport = Annotated[
    list[Network] | None,
    typer.Option(
        metavar="NAME",
        help=f"A network to compare: {_listed(Network)}. Repeat it for several. Default: all that are here, but "
        "torch+bagua.",
        rich_help_panel=_WORK,
    ),
]
Codec = Annotated[
    list[Code] | None,
    typer.Option(
        metavar="CODE",
        help="Compare with an allreduce of float32 that sends codes: of 8 bits for each element, u8, or of 4, u4. "
        "Repeat it for both. It is measured beside bagua, or what --transport names.",
        rich_help_panel=_WORK,
    ),
]
Dev = Annotated[
    int, typer.Option(min=0, metavar="N", help="The network's device, where it has several.", rich_help_panel=_WORK)
]
Ranks = Annotated[
    int | None,
    typer.Option(
        min=2, max=MAX_RANKS, metavar="N", help="Processes; 2 unless torchrun says otherwise.", rich_help_panel=_RANKS
    ),
]
Rendezvous = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where ranks of several hosts meet: rank 0's host. One command for each rank.",
        rich_help_panel=_RANKS,
    ),
]
Rank = Annotated[int | None, typer.Option(min=0, metavar="N", help="This one's number there.", rich_help_panel=_RANKS)]
Interface = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Interface, as NCCL_SOCKET_IFNAME takes it. Default: loopback within a host.",
        rich_help_panel=_RANKS,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=1, max=86400, metavar="N", help="Seconds without progress that end the run.", rich_help_panel=_RANKS
    ),
]
Iters = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Calls per round; 0: what fits into half a minute.", rich_help_panel=_REPETITIONS
    ),
]
Warmup = Annotated[
    int, typer.Option(min=1, metavar="N", help="Calls before the first round.", rich_help_panel=_REPETITIONS)
]
Rounds = Annotated[
    int, typer.Option(min=1, metavar="N", help="Turns of each network at each size.", rich_help_panel=_REPETITIONS)
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write every figure, with its spread.", rich_help_panel=_FILES),
]
PlotFile = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw the figures (needs matplotlib).", rich_help_panel=_FILES),
]

# ---- options of one command ----

NcclTransport = Annotated[
    list[NcclNetwork] | None,
    typer.Option(metavar="NAME", help="Only this one: nccl+bagua or nccl. Default: both.", rich_help_panel=_WORK),
]
Libnccl = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        exists=True,
        dir_okay=False,
        help="This libnccl.so.2. Default: the one that a job here would use.",
        rich_help_panel=_WORK,
    ),
]
NetPlugin = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        exists=True,
        dir_okay=False,
        help="Compare with this network plugin, too (nccl+other).",
        rich_help_panel=_WORK,
    ),
]
Cuda = Annotated[
    bool, typer.Option("--cuda", help="On this machine's GPUs, by the NCCL of torch.", rich_help_panel=_WORK)
]
Model = Annotated[ModelName, typer.Option(metavar="MODEL", help=f"{_listed(ModelName)}.", rich_help_panel=_WORK)]
GradientType = Annotated[Gradient, typer.Option(metavar="TYPE", help=f"{_listed(Gradient)}.", rich_help_panel=_WORK)]

Known = Annotated[
    ModelName | None, typer.Option("--model", metavar="MODEL", help=f"{_listed(ModelName)}.", rich_help_panel=_JOB)
]
Parameters = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Any other model, of so many parameters, as if all were in matrices of 1 MiB; suffixes K, M, G of 1000.",
        rich_help_panel=_JOB,
    ),
]
Linked = Annotated[
    int, typer.Option("--ranks", min=2, metavar="N", help="Ranks, each with a link of its own.", rich_help_panel=_JOB)
]
Compute = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        metavar="MS",
        help="Milliseconds of a step without communication, as under no_sync(). They hide a part of the network's.",
        rich_help_panel=_JOB,
    ),
]
LinkRate = Annotated[
    str | None,
    typer.Option(metavar="BITS", help="Bits per second: 10G for 10 GbE; suffixes of 1000.", rich_help_panel=_LINK),
]
MeasuredFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="The rate in this file instead: one of `bench --json`, or what `doctor --peers HOST,… --json` printed.",
        rich_help_panel=_LINK,
    ),
]
Calculated = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write every figure.", rich_help_panel=_FILES)
]
Latency = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="US",
        help="Microseconds from a rank to the next. Default: 14, as NCCL's model of rings has it.",
        rich_help_panel=_LINK,
    ),
]


def _names(chosen: Sequence[Enum] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(one.value) for one in chosen or ()))


def _with_codes(transport: Sequence[Enum] | None, codec: Sequence[Enum] | None) -> tuple[str, ...]:
    """The networks that are named, or bagua, and the compressed allreduces beside them."""
    names, codes = _names(transport), tuple(f"bagua+{code}" for code in _names(codec))
    return (*(names or ("bagua",)), *codes) if codes else names


def _decimal(text: str) -> float:
    """The number in "10G" or "2.5M"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.strip(), re.IGNORECASE)
    number = float(match[1]) * _UNITS[match[2].upper()] if match else 0
    if number < 1:
        raise typer.BadParameter(f"{text!r} is no number of 1 or more; write for example 10G, 2.5G or 100M")
    return number


def _bits(text: str) -> float:
    """Of a link, each second."""
    number = _decimal(text)
    if number < _FEWEST_BITS:
        raise typer.BadParameter(f"--rate {text} is {number:g} bit/s; for 10 Gbit/s write 10G")
    return number


def _count(text: str) -> int:
    """Of parameters; "1.3B" is "1.3G"."""
    number = _decimal(re.sub("[bB]$", "G", text))
    if number > _MOST_PARAMETERS:
        raise typer.BadParameter(f"{text!r} are more than {_MOST_PARAMETERS / 1e9:.0f}G parameters")
    return int(number)


def _sweep(smallest: str, largest: str, factor: int) -> tuple[int, ...]:
    try:
        return tuple(_sizes.sweep(_sizes.parse(smallest), _sizes.parse(largest), factor))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _place(ranks: int | None, rank: int | None, rendezvous: str | None) -> Placement:
    try:
        return place(ranks, rank, rendezvous)
    except PlacementInvalid as error:
        raise typer.BadParameter(str(error)) from None


def _run(
    config: Config, placement: Placement, ifname: str | None, json_file: Path | None, plot_file: Path | None
) -> None:
    from .._bench import run  # its imports would slow down the other commands

    outputs = run.Outputs(json_file, plot_file, ["bagua-net", *sys.argv[1:]])
    if not run.run(config, placement, ifname, outputs):
        raise typer.Exit(1)


# ---- the commands ----


def bench(
    ctx: typer.Context,
    op: Operation = _ALLREDUCE,
    smallest: Smallest = "4",
    largest: Largest = "64M",
    factor: Factor = 4,
    dtype: Dtype = _FLOAT32,
    redop: Redop = _SUM,
    transport: Transport = None,
    codec: Codec = None,
    dev: Dev = Config.dev,
    ranks: Ranks = None,
    rendezvous: Rendezvous = None,
    rank: Rank = None,
    ifname: Interface = None,
    timeout: Timeout = Config.timeout,
    iters: Iters = Config.iters,
    warmup: Warmup = Config.warmup,
    rounds: Rounds = Config.rounds,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Measure collectives between processes over each network.

    BaguaNet and the other networks that are here take turns in the same processes, on host memory, and every result is
    checked. The columns are those of nccl-tests.
    """
    if ctx.invoked_subcommand is not None:
        _check_order(ctx, ctx.invoked_subcommand)
        return
    placement = _place(ranks, rank, rendezvous)
    config = Config(
        nranks=placement.nranks,
        op=op.value,
        dtype=dtype.value,
        redop=redop.value,
        sizes=_sweep(smallest, largest, factor),
        transports=_with_codes(transport, codec),
        dev=dev,
        iters=iters,
        warmup=warmup,
        rounds=rounds,
        timeout=timeout,
    )
    _run(config, placement, ifname, json_file, plot_file)


def _check_order(ctx: typer.Context, subcommand: str) -> None:
    """An option before the subcommand's name is one of `bench` alone, and would be ignored."""
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"options of `{ctx.command_path} {subcommand}` come after `{subcommand}`")


def nccl(
    cuda: Cuda = False,
    libnccl: Libnccl = None,
    net_plugin: NetPlugin = None,
    transport: NcclTransport = None,
    op: Operation = _ALLREDUCE,
    smallest: Smallest = "4",
    largest: Largest = "64M",
    factor: Factor = 4,
    dtype: Dtype = _FLOAT32,
    redop: Redop = _SUM,
    ranks: Ranks = None,
    rendezvous: Rendezvous = None,
    rank: Rank = None,
    ifname: Interface = None,
    timeout: Timeout = Config.timeout,
    iters: Iters = Config.iters,
    warmup: Warmup = Config.warmup,
    rounds: Rounds = Config.rounds,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Measure NCCL itself, with the plugin and without.

    It needs no GPU: this processor plays the part of one, so times say nothing about a GPU. With `--cuda` it runs on
    real ones. Each network has processes of its own, which take turns.
    """
    if cuda and (libnccl or net_plugin):
        raise typer.BadParameter("--cuda measures the NCCL of torch: it takes no --libnccl and no --net-plugin")
    placement = _place(ranks, rank, rendezvous)
    _check_average(redop.value, op.value, dtype.value, placement.nranks)
    config = Config(
        nranks=placement.nranks,
        op=op.value,
        dtype=dtype.value,
        redop=redop.value,
        sizes=_sweep(smallest, largest, factor),
        transports=(*(_names(transport) or _names(list(NcclNetwork))), *(["nccl+other"] if net_plugin else [])),
        device="cuda" if cuda else "emulated",
        nccl=str(libnccl or "auto"),
        net_plugin=str(net_plugin or ""),
        iters=iters,
        warmup=warmup,
        rounds=rounds,
        timeout=timeout,
    )
    _run(config, placement, ifname, json_file, plot_file)


def _check_average(redop: str, op: str, dtype: str, nranks: int) -> None:
    """NCCL multiplies by a fraction instead of dividing; only the halves, quarters … have an exact one."""
    if redop == "avg" and OPS[op].reduces and "int" not in dtype and nranks & (nranks - 1):
        raise typer.BadParameter(
            f"NCCL averages {dtype} by multiplying with 1/{nranks}, which is not exact, and the checks are; "
            "take 2, 4, 8 … ranks, an integer type, or another --redop"
        )


def step(
    model: Model = _RESNET50,
    dtype: GradientType = _GRADIENT,
    transport: Transport = None,
    codec: Codec = None,
    dev: Dev = Config.dev,
    ranks: Ranks = None,
    rendezvous: Rendezvous = None,
    rank: Rank = None,
    ifname: Interface = None,
    timeout: Timeout = Config.timeout,
    iters: Iters = Config.iters,
    warmup: Warmup = Config.warmup,
    rounds: Rounds = Config.rounds,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Measure the gradients of one training step of a model, in DDP's buckets.

    It is the allreduce of as many elements as the model has parameters, over the networks of `bagua-net bench`. There
    is no computation beside it.
    """
    placement = _place(ranks, rank, rendezvous)
    config = Config(
        nranks=placement.nranks,
        model=model.value,
        dtype=dtype.value,
        transports=_with_codes(transport, codec),
        dev=dev,
        iters=iters,
        warmup=warmup,
        rounds=rounds,
        timeout=timeout,
    )
    _run(config, placement, ifname, json_file, plot_file)


def calculate(
    model: Known = None,
    parameters: Parameters = None,
    ranks: Linked = 2,
    compute: Compute = None,
    rate: LinkRate = None,
    measured: MeasuredFile = None,
    latency: Latency = None,
    json_file: Calculated = None,
) -> None:
    """Calculate, without measuring, a training step over links of a rate: is 10 GbE enough?

    For each algorithm of `bagua_net.algorithms` it says what a rank sends for the gradients of a model, how long that
    takes, and with `--compute` which part of it is hidden, and the scaling efficiency.
    """
    if (model is None) == (parameters is None):
        which = f"--model with one of {_listed(ModelName)}, or --parameters"
        raise typer.BadParameter(f"name one model: {which}{', not both' if model else ''}")
    if (rate is None) == (measured is None):
        both = ", not both" if rate else ""
        raise typer.BadParameter(f"name one rate: --rate, such as 10G, or --measured with a file{both}")
    from .._bench.calculation import link, table
    from .._bench.calculation.step import calculate as calculated

    if not all(map(math.isfinite, (latency or 0.0, compute or 0.0))):
        raise typer.BadParameter("--latency and --compute are finite numbers")
    latency_s = link.LATENCY_S if latency is None else latency / 1e6
    each = link.measured(measured, latency_s) if measured else link.named(_bits(rate or ""), latency_s)
    name = model.value if model else "a model"
    shapes = models.shapes(name) if model else models.matrices(_count(parameters or ""))
    found = calculated(name, shapes, ranks, each, None if compute is None else compute / 1e3)
    for line in table.lines(found):
        print(line)
    if json_file is not None:
        table.write(json_file, ["bagua-net", *sys.argv[1:]], found)


def compare(
    before: Annotated[
        Path, typer.Argument(metavar="BEFORE", exists=True, dir_okay=False, help="A file that `--json` wrote.")
    ],
    after: Annotated[
        Path, typer.Argument(metavar="AFTER", exists=True, dir_okay=False, help="A later one, of the same measurement.")
    ],
) -> None:
    """Compare two stored runs: what became slower or faster, beyond what their rounds vary by.

    Exit status 1: something became slower.
    """
    from .._bench.output import difference

    runs = difference.Run.load(before), difference.Run.load(after)
    found = difference.changes(*runs)
    for sentence in difference.sentences(*runs, found):
        print(sentence)
    raise typer.Exit(int(any(change.verdict == "slower" for change in found)))


def register(app: typer.Typer, panel: str) -> None:
    """Adds the command ``bench`` with its subcommands."""
    group = typer.Typer(subcommand_metavar="[nccl|step|calculate|compare]", rich_markup_mode="markdown")
    group.callback(invoke_without_command=True)(bench)
    for command in (nccl, step):
        group.command(rich_help_panel="Other measurements")(command)
    group.command(rich_help_panel="Without measuring")(calculate)
    group.command(rich_help_panel="Stored runs")(compare)
    app.add_typer(group, name="bench", rich_help_panel=panel)
