# SPDX-License-Identifier: MIT
"""What one who records a link sees of a torch job between two hosts, encrypted and plain."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.strangers.here import secret_file
from tests.support import drivers, netns, programs
from tests.support.netns import Host

pytestmark = pytest.mark.gate

SECRET = bytes(range(32))
SECONDS = 100
#: Of a buffer that repeats them: two of them in a row have all of one, wherever a packet begins.
BLOCK = bytes(range(64, 80))
BLOCKS = 1 << 18
_ALL_FRAMES = 0x0003  # ETH_P_ALL
_RCVBUFFORCE = 33  # SO_RCVBUFFORCE


@contextmanager
def _recorded(host: Host, file: Path) -> Iterator[None]:
    """All frames of the host's link, in the file."""
    command = [*host.prefix, sys.executable, "-m", "tests.strangers.test_job_on_the_wire", "link0", str(file)]
    with subprocess.Popen(command, env=_environment({}), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as recorder:
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == b"records\n"
        try:
            yield
        finally:
            recorder.communicate()  # its input ends


def _environment(settings: dict[str, str]) -> dict[str, str]:
    return drivers.environment({**settings, "PYTHONPATH": programs.search_path()})


def _record(interface: str, file: str) -> None:
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES)) as link,
        Path(file).open("wb") as out,
    ):
        link.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 256 << 20)
        link.bind((interface, 0))
        print("records", flush=True)
        os.set_blocking(sys.stdin.fileno(), False)
        link.settimeout(0.5)
        while True:
            try:
                out.write(link.recv(1 << 17))
            except TimeoutError:
                if sys.stdin.buffer.read(1) == b"":
                    return


def _start(rank: int, host: Host, settings: dict[str, str]) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
    variables = {**place, **settings, "NCCL_SOCKET_IFNAME": "link0", "OMP_NUM_THREADS": "1"}
    command = [*host.prefix, sys.executable, "-m", "tests.strangers.test_job_on_the_wire"]
    return subprocess.Popen(
        command, env=_environment(variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("encrypts", [True, False], ids=["encrypted", "plain"])
def test_a_job_between_two_hosts(encrypts: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    settings = {"BAGUA_NET_SECRET_FILE": secret_file(tmp_path, SECRET), "BAGUA_NET_ENCRYPT": "1"} if encrypts else {}
    file = tmp_path / "frames"
    with netns.two_hosts() as hosts:
        for number, host in enumerate(hosts, 1):
            host.ip("address", "add", f"10.77.0.{number}/24", "dev", "link0")
        with _recorded(hosts[0], file):
            ranks = [_start(rank, host, settings) for rank, host in enumerate(hosts)]
            said = [rank.communicate(timeout=SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [out for out, _ in said] == ["the sum is right\n"] * 2
    frames = file.read_bytes()
    assert len(frames) > BLOCKS * len(BLOCK)  # of twice as much
    assert (BLOCK in frames) != encrypts


def _rank() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("bagua_net")
    ours = torch.frombuffer(bytearray(BLOCK * BLOCKS), dtype=torch.uint8)
    total = ours.clone() if dist.get_rank() == 0 else torch.zeros_like(ours)
    dist.all_reduce(total)
    assert torch.equal(total, ours)
    print("the sum is right")
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:]:
        _record(*sys.argv[1:])
    else:
        _rank()
