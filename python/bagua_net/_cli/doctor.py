# SPDX-License-Identifier: MIT
"""``bagua-net doctor``: this machine, NCCL on it, and what stands between several hosts."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .._doctor import check, nccl, network, plugin
from .._text import printable
from . import printing
from .printing import Json

_VERDICTS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
_SEVERAL = "Several hosts"
#: It asks for no password.
_SSH = "ssh -o BatchMode=yes"
#: For hosts that are started by hand.
_MEETING_S = 300.0

Peers = Annotated[
    str | None,
    typer.Option(
        metavar="HOST,…",
        help="Examine these hosts and this one, and the network between them. ssh starts the check there.",
        rich_help_panel=_SEVERAL,
    ),
]
Through = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="What starts a command on a host, instead of ssh: the host follows it, or takes the place of {}, as in "
        "'kubectl exec -i {} --'. It must pass on its input.",
        rich_help_panel=_SEVERAL,
    ),
]
Python = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Their Python that has bagua_net. Default: this one.", rich_help_panel=_SEVERAL),
]
Rendezvous = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Without ssh: run this command on every host, with the address of rank 0's, --rank and --ranks, and a "
        "secret in BAGUA_NET_BENCH_TOKEN where strangers are in the network.",
        rich_help_panel=_SEVERAL,
    ),
]
Rank = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="This host's number there.", rich_help_panel=_SEVERAL)
]
Rates = Annotated[
    bool,
    typer.Option(
        "--rates/--no-rates",
        help="Fill the network between the hosts, one pair of them after another, for some seconds each way and card.",
        rich_help_panel=_SEVERAL,
    ),
]
Ranks = Annotated[int | None, typer.Option(min=2, metavar="N", help="The number of hosts.", rich_help_panel=_SEVERAL)]


def _say(what: str) -> None:
    """What is looked at, where somebody watches."""
    if not sys.stderr.isatty():
        return
    if not Console(stderr=True).is_dumb_terminal:
        print(f"\r\033[K{what and what + ' …'}", end="", file=sys.stderr, flush=True)
    elif what:
        print(f"{what} …", file=sys.stderr, flush=True)


def _is_bad(findings: Iterable[check.Check]) -> bool:
    return any(finding.verdict == "fail" for finding in findings)


def _between(others: list[str], through: str, python: str, *, rates: bool, job: bool) -> list[check.Check]:
    from .._doctor.peers import examine, link  # their imports would slow down the other commands

    try:
        with link.Commands(others, through, python) as hosts:
            return list(check.run(examine.checks(hosts, _say, rates=rates, job=job)))
    finally:
        _say("")


def _meet(rendezvous: str, rank: int | None, ranks: int | None, *, rates: bool, job: bool) -> list[check.Check]:
    """On rank 0. The others take part, say so, and end with the same status."""
    from .._bench.ranks.placement import PlacementInvalid, place
    from .._doctor.peers import examine, link

    try:
        placement = place(ranks, rank, rendezvous)
    except PlacementInvalid as error:
        raise typer.BadParameter(str(error)) from None
    if 0 not in placement.ranks:
        failed = link.follow(placement, _MEETING_S)
        print("# rank 0 has the findings", file=sys.stderr)
        raise typer.Exit(int(failed))
    try:
        with link.meeting(placement, _MEETING_S) as hosts:
            found = list(check.run(examine.checks(hosts, _say, rates=rates, job=job)))
            hosts.failed = _is_bad(found)
            return found
    finally:
        _say("")


def _named(peers: str) -> list[str]:
    others = [each.strip() for each in peers.split(",") if each.strip()]
    if not others or any(each.startswith("-") for each in others):
        raise typer.BadParameter("--peers names hosts, with commas between them")
    return others


def _check_options(
    *, several: bool, rates: bool, library: bool, peers: bool, only_peers: bool, rendezvous: bool, ranked: bool
) -> None:
    """Raises BadParameter where options do not go together."""
    if peers and (rendezvous or ranked):
        raise typer.BadParameter("--peers reaches the hosts itself; --rendezvous is for commands on each of them")
    if ranked and not rendezvous:
        raise typer.BadParameter("--rank and --ranks need --rendezvous HOST:PORT, the same on every host")
    if only_peers and not peers:
        raise typer.BadParameter("--through and --python need --peers, which names the hosts")
    if not rates and not several:
        raise typer.BadParameter("--no-rates is for several hosts: --peers or --rendezvous")
    if library and several:
        raise typer.BadParameter("--libnccl names a file of this machine; with --peers and --rendezvous use --nccl")


def doctor(
    with_nccl: Annotated[
        bool,
        typer.Option(
            "--nccl",
            help="Also run a job over NCCL's own code, without a GPU: two ranks here, or one on each of several hosts.",
        ),
    ] = False,
    libnccl: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            exists=True,
            dir_okay=False,
            resolve_path=True,
            help="The same with this libnccl.so.2 instead of the one that a job here would use.",
        ),
    ] = None,
    peers: Peers = None,
    through: Through = None,
    python: Python = None,
    rendezvous: Rendezvous = None,
    rank: Rank = None,
    ranks: Ranks = None,
    rates: Rates = True,
    as_json: Json = False,
) -> None:
    """Check this machine, or several and the network between them: verdict, fact, fix.

    Exit status 1: something fails. Warnings leave it 0.
    """
    _check_options(
        several=peers is not None or rendezvous is not None,
        rates=rates,
        library=libnccl is not None,
        peers=peers is not None,
        only_peers=through is not None or python is not None,
        rendezvous=rendezvous is not None,
        ranked=rank is not None or ranks is not None,
    )
    if peers is not None:
        findings = _between(_named(peers), through or _SSH, python or sys.executable, rates=rates, job=with_nccl)
    elif rendezvous is not None:
        findings = _meet(rendezvous, rank, ranks, rates=rates, job=with_nccl)
    else:
        job = nccl.checks(str(libnccl or "auto")) if with_nccl or libnccl else ()
        findings = list(check.run((*plugin.CHECKS, *network.CHECKS, *job)))
    if as_json:
        printing.dump([dataclasses.asdict(finding) for finding in findings])
    else:
        rows = ((_VERDICTS[finding.verdict], _plain(finding.name), _with_fix(finding)) for finding in findings)
        printing.lines(printing.grid(rows))
    raise typer.Exit(int(_is_bad(findings)))


def _plain(text: str) -> str:
    """Without what a terminal would obey: another host may have said it."""
    return escape(printable(text, " "))


def _with_fix(finding: check.Check) -> str:
    return _plain(finding.fact) + (f" [bold]→ {_plain(finding.fix)}[/]" if finding.fix else "")


def register(app: typer.Typer, panel: str) -> None:
    """Adds the command."""
    app.command(rich_help_panel=panel)(doctor)
