# SPDX-License-Identifier: MIT
"""``bagua-net export``: the counters of running processes for Prometheus."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .._errors import BaguaNetError
from .._stats import files

_PORT = 9478
_LOCK = "export.lock"
_EVERY_S = 15.0
#: Some rounds of a process.
_ONCE_S = 2.5


class ExportNotPossible(BaguaNetError):
    """A package is missing."""


def _registry() -> Any:
    try:
        from prometheus_client import CollectorRegistry

        from .._stats.metrics import Metrics
    except ModuleNotFoundError as error:
        raise ExportNotPossible(f"{error.name} is not installed here: pip install prometheus-client") from error
    registry = CollectorRegistry()
    registry.register(Metrics(lambda: files.read_all(files.directory())))
    return registry


def _open_directory(path: Path) -> int:
    """Nobody else's, and no link to one."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise ExportNotPossible(f"{path} is another user's, or open to others: remove it, or set BAGUA_NET_STATS_DIR")
    return descriptor


@contextlib.contextmanager
def _elected() -> Iterator[None]:
    """One exporter of a user serves a host. The others wait until it ends."""
    directory = _open_directory(files.directory())
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(_LOCK, flags, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("bagua-net: another exporter of this user serves here; waiting until it ends", file=sys.stderr)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _serve(registry: Any, address: str, port: int) -> None:
    from prometheus_client import start_http_server

    with _elected():
        try:
            server, _ = start_http_server(port, address, registry)
        except OSError as error:
            raise ExportNotPossible(f"{address}:{port}: {error.strerror}; --port names another one") from error
        print(f"bagua-net: http://{address}:{server.server_port}/metrics", file=sys.stderr, flush=True)
        threading.Event().wait()


def _write(registry: Any, path: Path) -> None:
    from prometheus_client import write_to_textfile

    with _elected():
        try:
            while True:
                write_to_textfile(str(path), registry)
                time.sleep(_EVERY_S)
        finally:  # node_exporter would serve the last figures for ever
            path.unlink(missing_ok=True)


def _print_once(registry: Any) -> None:
    """What holds connections back shows between two looks."""
    from prometheus_client import generate_latest

    generate_latest(registry)
    time.sleep(_ONCE_S)
    sys.stdout.write(generate_latest(registry).decode())


def register(app: typer.Typer, panel: str) -> None:
    @app.command(rich_help_panel=panel)
    def export(
        address: Annotated[str, typer.Option("--address", help="Where to listen; 0.0.0.0: everywhere.")] = "127.0.0.1",
        port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = _PORT,
        textfile: Annotated[
            Path | None, typer.Option("--textfile", help="Write this file every 15 s instead, for node_exporter.")
        ] = None,
        once: Annotated[bool, typer.Option("--once", help="Print all metrics and end.")] = False,
    ) -> None:
        """Serve the counters of this user's running processes to Prometheus.

        Of several exporters of a user on a host one serves, and the others wait until it ends.
        """
        registry = _registry()
        with contextlib.suppress(KeyboardInterrupt):
            if once:
                _print_once(registry)
            elif textfile:
                _write(registry, textfile)
            else:
                _serve(registry, address, port)
