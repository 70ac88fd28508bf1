# SPDX-License-Identifier: MIT
"""``bagua-net enable``, ``disable``, ``run`` and ``env``."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .._activation import environment, launchers, switch
from .._activation.status import status
from .._errors import ConflictingSetting
from .._machine import interfaces
from .._settings import homes, layers, parameters

Format = Enum("Format", {name: name for name in launchers.FORMATS}, type=str)  # type: ignore[misc]
_SH = Format("sh")

System = Annotated[bool, typer.Option("--system", help="For all users: /etc/nccl.conf.")]
Rccl = Annotated[bool, typer.Option("--rccl", help="Also for AMD's RCCL, as where one is found: .rccl.conf.")]
Conf = Annotated[Path | None, typer.Option("--conf", metavar="FILE", help="This file, for NCCL_CONF_FILE.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, as a diff; change nothing.")]

PerCommunicator = Annotated[
    bool,
    typer.Option(
        "--per-communicator", help="Do not set NCCL_NET: a communicator may choose another network, as IB, by netName."
    ),
]

#: Python ignores them from its start on, and what is ignored stays so in the program that takes its place: a shell
#: whose reader has ended would write for ever.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


def say(message: str) -> None:
    """Prose goes to stderr: stdout is for programs."""
    print(message, file=sys.stderr)


def _target(system: bool, conf: Path | None, *, rccl: bool) -> switch.Target:
    if system and conf is not None:
        raise typer.BadParameter("--system and --conf exclude each other")
    if conf is not None:
        return switch.Target.file(conf)
    return switch.Target.system(rccl=rccl) if system else switch.Target.user(rccl=rccl)


def _show(changes: list[switch.Change]) -> None:
    for change in changes:
        sys.stdout.write(change.diff())


def enable(
    system: System = False,
    conf: Conf = None,
    rccl: Rccl = False,
    dry_run: DryRun = False,
    per_communicator: PerCommunicator = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also over active RDMA, an older NCCL, or another setting in the file.")
    ] = False,
) -> None:
    """Turn the plugin on for every later job.

    It writes a marked block into ~/.nccl.conf, which NCCL reads, and `disable` takes that out again. Where $HOME and
    the password database name different homes, both get one: which of them NCCL reads depends on its version. The
    block points at a copy of the library, so that the jobs do not depend on this Python environment. For RCCL, AMD's
    NCCL, ~/.rccl.conf gets the same block.
    """
    if rccl and conf is not None:
        raise typer.BadParameter("--conf names the only file to write, so it takes no --rccl")
    target = _target(system, conf, rccl=rccl or switch.rccl_is_here())
    unused_rdma = None if force else switch.check_machine(target, rccl=rccl, per_communicator=per_communicator)
    switch.check_writable(target)
    changes = switch.plan_enable(target, force=force, per_communicator=per_communicator)
    named = switch.stand_in(target)
    if named is not None:
        remedy = homes.instead_of_conf_file(named)
        say(f"NCCL_CONF_FILE is set, so NCCL will not read {switch.user_conf_name()} here; {remedy}")
    if unused_rdma is not None:
        say(unused_rdma)
    overridden = switch.overridden(target, per_communicator=per_communicator)
    if per_communicator:
        _say_if_none_can_choose(layers.without(layers.of_a_job(), (path for path, _ in target.files)))
    if dry_run:
        _show(changes)
        for path in switch.libraries(target):
            say(f"{path}: the library would be copied here")
        if overridden:
            _say_overridden(status().problem, overridden)
        return
    switch.enable(target, changes)
    word = "written" if overridden else "enabled"
    for change in changes:
        say(f"{change.path}: " + (word if change.is_one else f"{word} already"))
    if len(changes) > 1 and len({change.path.parent for change in changes}) > 1:
        say(
            "in both homes: NCCL before 2.30 reads that of the password database, later ones $HOME; "
            "`bagua-net disable` takes both files and the library's copies away"
        )
    found = status()
    if overridden:
        _say_overridden(found.problem, overridden)
    elif not found.on and conf is None and named is None:
        say(f"but not in effect here: {found.problem}")
    elif not found.on and conf is not None:
        say(f"to use it: export NCCL_CONF_FILE={shlex.quote(str(target.confs[0]))} (NCCL 2.23 and later)")


def _say_if_none_can_choose(among: layers.Layers) -> None:
    try:
        environment.check_choice({}, among)
    except ConflictingSetting as error:
        say(f"bagua-net: {error}")


def _say_overridden(problem: str | None, variables: dict[str, str]) -> None:
    """The environment beats every file; an image's is changed where the image or the pod is made."""
    given = ", ".join(f"{name}={os.environ[name]}" for name in variables)
    say(
        f"but not in effect where {given} is set, as here, because the environment overrides the file"
        + (f": {problem}" if problem and "is a preset of" in problem else "")
    )
    say("in its Dockerfile:\n" + launchers.render("docker", variables))
    say("or in its pod:\n" + launchers.render("k8s", variables))


def disable(system: System = False, conf: Conf = None, dry_run: DryRun = False) -> None:
    """Undo `enable`, byte for byte."""
    target = _target(system, conf, rccl=switch.rccl_is_enabled(system=system))
    changes = switch.plan_disable(target)
    if dry_run:
        _show(changes)
        return
    removed = switch.disable(target, changes)
    for change in changes:
        say(f"{change.path}: " + ("disabled" if change.is_one else "was not enabled"))
    for copy in removed:
        say(f"{copy}: removed")


def _program(name: str) -> str:
    """The file to execute, found as a shell finds it. To Python's own search, a directory of PATH that may not be read
    looks like a program that may not be executed.

    Raises:
        FileNotFoundError: no directory of PATH has such a file.
    """
    if "/" in name:
        return name
    found = shutil.which(name) or shutil.which(name, mode=os.F_OK)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return found


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="With its arguments."),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Override another NCCL_NET_PLUGIN or NCCL_NET; say nothing of RDMA.")
    ] = False,
    per_communicator: PerCommunicator = False,
) -> NoReturn:
    """Run one command with the plugin on.

    The exit status is the command's; 127: there is no such command; 126: it cannot be executed.
    """
    among = layers.of_a_job()
    variables = environment.env(per_communicator=per_communicator)
    complaints = [*parameters.check(), *filter(None, [interfaces.complaint()])]
    if force:
        environment.check_choice(variables, layers.without(among, [layers.ENVIRONMENT]))
    else:
        claim = environment.claim(variables, among, instead="use `bagua-net run --force -- COMMAND`")
        variables = {} if claim.stays else variables | claim.variables
        displaced = None if claim.stays or per_communicator else environment.displaced_rdma(among)
        complaints += [*claim.sentences, *filter(None, [displaced])]
    for sentence in complaints:
        say(f"bagua-net: {sentence}")
    inherited = {name: value for name, value in os.environ.items() if name != "NCCL_NET" or not per_communicator}
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(_program(command[0]), command, inherited | variables)
    except FileNotFoundError:
        say(f"bagua-net: {command[0]}: no such command")
        sys.exit(_NOT_FOUND)
    except OSError as error:
        say(f"bagua-net: {command[0]}: {error.strerror}")
        sys.exit(_NOT_EXECUTABLE)


def env(
    form: Annotated[Format, typer.Option("--format", metavar="FORMAT", help=f"{', '.join(launchers.FORMATS)}.")] = _SH,
    per_communicator: PerCommunicator = False,
) -> None:
    """Print the variables that turn the plugin on, for a shell or a launcher.

    With them come the BAGUA_NET_* parameters of this environment, which launchers would drop.
    """
    if per_communicator:
        _say_if_none_can_choose(layers.of_a_job())
    print(launchers.render(form.value, environment.env(per_communicator=per_communicator)))


def register(app: typer.Typer, panel: str) -> None:
    """Adds the commands."""
    app.command(rich_help_panel=panel)(enable)
    app.command(rich_help_panel=panel)(disable)
    # Everything after the command's name belongs to the command, also without the two dashes.
    app.command(rich_help_panel=panel, context_settings={"allow_interspersed_args": False})(run)
    app.command(rich_help_panel=panel)(env)
