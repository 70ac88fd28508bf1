# SPDX-License-Identifier: MIT
"""The doctor's verdicts, each on a machine with that problem."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bagua_net._doctor import check, network, plugin
from tests.package.sandbox import Sandbox
from tests.support import nccl_wheels, netns


def diagnose(sandbox: Sandbox, **settings: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = sandbox.run("doctor", "--json", NCCL_SOCKET_IFNAME="lo", **settings)
    assert done.stderr == ""
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)}


def test_a_healthy_machine(sandbox: Sandbox) -> None:
    status, checks = diagnose(sandbox)
    assert status == 0
    for name in ("library", "path", "copy", "parameters", "activation", "RDMA", "interface lo", "tcp_wmem", "ports"):
        assert checks[name]["verdict"] in ("ok", "warn")
        assert checks[name]["fact"]
    assert checks["activation"]["fact"] == "off"
    assert str(sandbox.copy) in checks["copy"]["fact"]


def test_every_finding_that_is_not_ok_has_a_fix(sandbox: Sandbox) -> None:
    _, checks = diagnose(sandbox, BAGUA_NET_NSTREAMS="none", BAGUA_NET_NSTREMS="4", NCCL_NET_PLUGIN="other")
    assert {check["verdict"] for check in checks.values()} >= {"warn", "fail"}
    assert all(check["fix"] for check in checks.values() if check["verdict"] != "ok")


def test_the_text_has_one_line_for_each_finding(sandbox: Sandbox) -> None:
    _, checks = diagnose(sandbox)
    lines = sandbox.run("doctor", NCCL_SOCKET_IFNAME="lo").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [check["verdict"] for check in checks.values()]


def test_a_bad_value_and_a_misspelt_name(sandbox: Sandbox) -> None:
    status, checks = diagnose(sandbox, BAGUA_NET_NSTREAMS="999", BAGUA_NET_NSTREMS="4")
    assert status == 1
    assert checks["BAGUA_NET_NSTREAMS"] == {
        "name": "BAGUA_NET_NSTREAMS",
        "verdict": "fail",
        "fact": "999: not in 0 … 64 (environment)",
        "fix": "unset it or use a value in that range (the default is 0)",
    }
    assert checks["BAGUA_NET_NSTREMS"] == {
        "name": "BAGUA_NET_NSTREMS",
        "verdict": "warn",
        "fact": "is not a parameter (environment)",
        "fix": "did you mean BAGUA_NET_NSTREAMS?",
    }


def test_settings_of_a_file_that_nccl_reads(sandbox: Sandbox) -> None:
    first = free_pair()
    settings = f"BAGUA_NET_PORT_RANGE={first}-{first + 1}\nBAGUA_NET_IMPLEMENT=TOKIO\nBAGUA_NET_RCVBUF=much\n"
    sandbox.confs[0].write_text(settings)
    status, checks = diagnose(sandbox, BAGUA_NET_NSTREAMS="8")
    assert status == 1
    assert checks["BAGUA_NET_RCVBUF"]["fact"] == f"much: not a size such as 64K or 4M in 0 … 1G ({sandbox.confs[0]})"
    assert checks["BAGUA_NET_IMPLEMENT"]["fact"] == f"is not a parameter of this version ({sandbox.confs[0]})"
    for text in (
        "BAGUA_NET_NSTREAMS=8 (environment)",
        f"BAGUA_NET_PORT_RANGE={first}-{first + 1} ({sandbox.confs[0]})",
    ):
        assert text in checks["parameters"]["fact"]
    assert checks["ports"]["fact"] == f"2 of 2 ports free in {first}-{first + 1}"


def test_interfaces_are_those_that_a_file_chooses(sandbox: Sandbox) -> None:
    sandbox.confs[0].write_text("NCCL_SOCKET_IFNAME=nosuchif0\n")
    done = sandbox.run("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["interfaces"]["verdict"] == "fail"


def test_interfaces_are_those_of_a_prefix(sandbox: Sandbox) -> None:
    _, checks = diagnose(sandbox, BAGUA_NET_ADDRESS_PREFIX="127.0.0.1")
    assert checks["interface lo"]["fact"].startswith("127.0.0.1, ")
    status, checks = diagnose(sandbox, BAGUA_NET_ADDRESS_PREFIX="203.0.113.0/24")
    assert status == 1
    reason = "no address in BAGUA_NET_ADDRESS_PREFIX=203.0.113.0/24"
    assert checks["interface lo"]["fact"] == f"127.0.0.1: left out: {reason}"
    assert checks["interfaces"]["fix"] == "set BAGUA_NET_ADDRESS_PREFIX to the network of one that is up"


def test_the_secret_of_a_job(sandbox: Sandbox, tmp_path: Path) -> None:
    """What it covers, and what it does not."""
    _, checks = diagnose(sandbox)
    assert checks["identity"]["fact"].startswith("none: whoever sees the network")
    path = tmp_path / "secret"
    path.write_text("the secret of this test")
    path.chmod(0o600)
    status, checks = diagnose(sandbox, BAGUA_NET_SECRET_FILE=str(path), BAGUA_NET_ENCRYPT="1")
    assert status == 0
    said = "by a secret, encrypted; torch's store, NCCL's bootstrap and gloo are not covered"
    assert checks["identity"]["fact"].startswith(said)
    path.chmod(0o644)
    status, checks = diagnose(sandbox, BAGUA_NET_SECRET_FILE=str(path))
    assert status == 1
    assert checks["BAGUA_NET_SECRET_FILE"]["fix"].startswith("chmod 600 it")


def test_encryption_without_a_secret(sandbox: Sandbox) -> None:
    status, checks = diagnose(sandbox, BAGUA_NET_ENCRYPT="1")
    assert status == 1
    assert checks["BAGUA_NET_ENCRYPT"]["fix"] == "set BAGUA_NET_SECRET_FILE as well"
    assert checks["identity"]["verdict"] == "fail"


def test_a_path_that_is_too_long(sandbox: Sandbox) -> None:
    status, checks = diagnose(sandbox, XDG_DATA_HOME=f"/{'x' * 250}")
    assert status == 1
    assert checks["copy"]["verdict"] == "fail"


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_the_nccl_and_what_it_takes(sandbox: Sandbox, version: str) -> None:
    _, checks = diagnose(sandbox, **sandbox.with_nccl(nccl_wheels.library(version)))
    assert version in checks["NCCL"]["fact"]
    assert checks["NCCL"]["verdict"] == ("warn" if version == "2.18.3" else "ok")


def test_an_nccl_that_is_none(sandbox: Sandbox) -> None:
    broken = sandbox.root / "libnccl.so.2"
    broken.write_bytes(b"")
    status, checks = diagnose(sandbox, **sandbox.with_nccl(broken))
    assert status == 1
    assert "file too short" in checks["NCCL"]["fact"]


@contextmanager
def listeners(first: int, last: int) -> Iterator[None]:
    with ExitStack() as stack:
        for port in range(first, last + 1):
            listener = stack.enter_context(socket.socket())
            listener.bind(("", port))
            listener.listen()
        yield


def free_pair() -> int:
    """The first of two free ports."""
    for first in range(20000, 32000, 2):
        try:
            with listeners(first, first + 1):
                return first
        except OSError:
            continue
    pytest.skip("no two free ports in a row here")


def test_a_port_range_that_is_taken(sandbox: Sandbox) -> None:
    first = free_pair()
    span = f"{first}-{first + 1}"
    status, checks = diagnose(sandbox, BAGUA_NET_PORT_RANGE=span)
    assert (status, checks["ports"]["verdict"]) == (0, "warn")
    assert checks["ports"]["fact"] == f"2 of 2 ports free in {span}"
    with listeners(first, first + 1):
        status, checks = diagnose(sandbox, BAGUA_NET_PORT_RANGE=span)
    assert (status, checks["ports"]["verdict"]) == (1, "fail")


def test_a_port_range_that_a_job_has_just_left(sandbox: Sandbox) -> None:
    """Its connections are in TIME_WAIT, and the plugin can listen."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(listener.getsockname()) as client:
            listener.accept()[0].close()
            assert client.recv(1) == b""
    _, checks = diagnose(sandbox, BAGUA_NET_PORT_RANGE=f"{port}-{port}")
    assert checks["ports"]["fact"].startswith("1 of 1 ports free")


def test_a_port_range_among_the_outgoing_ports(sandbox: Sandbox) -> None:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    _, checks = diagnose(sandbox, BAGUA_NET_PORT_RANGE=f"{high}-{high}")
    assert f"{low}-{high}" in checks["port overlap"]["fact"]
    below = f"{int(low) - 20}-{int(low) - 1}"
    _, checks = diagnose(sandbox, BAGUA_NET_PORT_RANGE=below)
    assert "port overlap" not in checks


def test_what_the_port_range_does_not_cover(sandbox: Sandbox) -> None:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    _, checks = diagnose(sandbox, BAGUA_NET_PORT_RANGE=f"{int(low) - 20}-{int(low) - 1}")
    assert checks["NCCL's ports"]["verdict"] == "ok"
    assert checks["NCCL's ports"]["fact"].startswith(f"any of {low}-{high}: NCCL's bootstrap listens there whatever")


@pytest.mark.gate
@pytest.mark.parametrize(
    ("value", "version", "verdict", "part"),
    [
        ("0x1234", "2.30.7", "ok", "0x1234 (environment): for sockets that NCCL itself opens"),
        ("4660", "", "ok", "for sockets that NCCL itself opens"),
        ("0x1234", "2.21.5", "warn", "NCCL 2.21.5 does not read it"),
        ("mine", "2.30.7", "warn", "mine (environment) is no number"),
        ("0x12 34", "2.30.7", "warn", "is no number"),
        ("09", "2.30.7", "warn", "is no number"),
    ],
)
def test_the_magic_of_nccls_sockets(sandbox: Sandbox, value: str, version: str, verdict: str, part: str) -> None:
    nccl = sandbox.with_nccl(nccl_wheels.library(version)) if version else {}
    _, checks = diagnose(sandbox, NCCL_SOCKET_MAGIC=value, **nccl)
    assert checks["NCCL_SOCKET_MAGIC"]["verdict"] == verdict
    assert part in checks["NCCL_SOCKET_MAGIC"]["fact"]


@pytest.mark.gate
@pytest.mark.parametrize("version", ["2.21.5", "2.30.7"])
def test_lines_that_end_with_a_carriage_return(sandbox: Sandbox, version: str) -> None:
    """To NCCL before 2.30 it is a part of the value."""
    for conf in sandbox.confs:
        conf.write_bytes(b"NCCL_IB_DISABLE=1\r\n")
    _, checks = diagnose(sandbox, **sandbox.with_nccl(nccl_wheels.library(version)))
    if version == "2.30.7":
        assert "line ends" not in checks
    else:
        assert checks["line ends"]["verdict"] == "warn"
        assert str(sandbox.confs[1]) in checks["line ends"]["fact"]


def test_ports_that_are_reserved_already_stay_so() -> None:
    script = "echo 30000-30002 > /proc/sys/net/ipv4/ip_local_reserved_ports && BAGUA_NET_PORT_RANGE=40000-40015"
    code = "from bagua_net._doctor import network as n\nfor c in n.check_ports(): print(c.fix)"
    told = _in_namespace("--net", script, code)
    assert "ip_local_reserved_ports=30000-30002,40000-40015" in told


def _in_namespace(kind: str, script: str, code: str) -> str:
    """What Python code prints in a namespace of its own, after a shell's commands there, which end in "&& "."""
    netns.require_unshare()
    done = subprocess.run(
        ["unshare", kind, "sh", "-c", f'{script} exec "$0" -c "$1"', sys.executable, code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SICK_SYSCTLS = {
    "ipv4/tcp_wmem": "4096 16384 65536",
    "ipv4/tcp_rmem": "4096 131072 262144",
    "core/somaxconn": "128",
    "ipv4/tcp_congestion_control": "reno",
    "ipv4/tcp_slow_start_after_idle": "1",
}


def test_kernel_settings_in_a_namespace_of_their_own() -> None:
    """A network namespace has its own values of these, so the test can set them."""
    script = "".join(f"echo {value!r} > /proc/sys/net/{name} && " for name, value in SICK_SYSCTLS.items())
    code = (
        "import json; from bagua_net._doctor import check, network as n\n"
        "checks = (n.check_buffers, n.check_backlog, n.check_congestion_control)\n"
        "print(json.dumps({c.name: [c.verdict, c.fix] for c in check.run(checks)}))"
    )
    found = json.loads(_in_namespace("--net", script, code))
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "tcp_wmem": "warn",
        "tcp_rmem": "warn",
        "somaxconn": "warn",
        "congestion control": "warn",
        "tcp_slow_start_after_idle": "warn",
    }
    assert found["tcp_wmem"][1] == 'sysctl -w net.ipv4.tcp_wmem="4096 16384 4194304"'


@pytest.mark.gate
@pytest.mark.parametrize(
    ("named", "verdict", "said"),
    [
        ("", "warn", "only lo, by which no other host is reached (eth0: "),
        ("lo", None, ""),
        ("nope", "fail", "IFNAME=nope"),
    ],
)
def test_a_host_that_is_reached_by_nobody(named: str, verdict: str | None, said: str) -> None:
    """Its card has no carrier."""
    netns.require()
    script = "ip link set lo up && ip link add eth0 type veth peer name far && ip address add 10.0.0.1/24 dev eth0 && "
    script += f"export NCCL_SOCKET_IFNAME={named} NCCL_CONF_FILE=/dev/null && "
    code = (
        "import json; from bagua_net._doctor import network as n\n"
        "print(json.dumps({c.name: [c.verdict, c.fact] for c in n.check_interfaces()}))"
    )
    found = json.loads(_in_namespace("--net", script, code)).get("interfaces", [None, ""])
    assert found[0] == verdict
    assert said in found[1]


@pytest.mark.gate
@pytest.mark.parametrize(("size", "verdict"), [("64m", "warn"), ("1g", "ok")])
def test_the_shared_memory_of_a_container(size: str, verdict: str) -> None:
    netns.require_unshare()
    code = (
        "from bagua_net._doctor import plugin as p\nfor c in p.check_shared_memory(): print(c.verdict, c.fix, sep='|')"
    )
    told = _in_namespace("--mount", f"mount -t tmpfs -o size={size} none /dev/shm && ", code)
    assert told.startswith(f"{verdict}|")
    assert ("--shm-size" in told) == (verdict == "warn")


@pytest.mark.gate
@pytest.mark.parametrize("name", ["BAGUA_NET_SNDBUF", "BAGUA_NET_RCVBUF"])
@pytest.mark.parametrize(("value", "verdict"), [("65535", "warn"), ("8K", "warn"), ("64K", "ok"), ("1M", "ok")])
def test_a_buffer_that_tcp_cannot_work_with(sandbox: Sandbox, name: str, value: str, verdict: str) -> None:
    status, checks = diagnose(sandbox, **{name: value})
    assert (status, checks[name]["verdict"]) == (0, verdict)
    assert ("windows that small" in checks[name]["fact"]) is (verdict == "warn")


def test_buffers_that_are_left_to_the_kernel_or_cannot_be_read_are_no_finding_of_their_own(sandbox: Sandbox) -> None:
    status, checks = diagnose(sandbox, BAGUA_NET_SNDBUF="0", BAGUA_NET_RCVBUF="much")
    assert status == 1
    assert "BAGUA_NET_SNDBUF" not in checks
    assert checks["BAGUA_NET_RCVBUF"]["verdict"] == "fail"


@pytest.mark.parametrize(("bond", "verdict"), [("lo", "ok"), ("lo,absent0,absent1", "warn"), ("absent0", "warn")])
def test_interfaces_of_a_bond_that_are_there_or_not(sandbox: Sandbox, bond: str, verdict: str) -> None:
    status, checks = diagnose(sandbox, BAGUA_NET_BOND=bond)
    found = checks["BAGUA_NET_BOND"]
    assert (status, found["verdict"]) == (0, verdict)
    if verdict == "warn":
        left_out = bond.removeprefix("lo,").replace(",", ", ")
        assert found["fact"] == f"{bond}: goes on without {left_out}"
        assert found["fix"] == "take from lo"


@pytest.mark.parametrize(("name", "verdict"), [("reno", "ok"), ("no-such_one", "warn")])
def test_a_congestion_control_that_the_kernel_has_or_not(sandbox: Sandbox, name: str, verdict: str) -> None:
    status, checks = diagnose(sandbox, BAGUA_NET_CONGESTION=name)
    assert (status, checks["BAGUA_NET_CONGESTION"]["verdict"]) == (0, verdict)
    assert ("the kernel has" in checks["BAGUA_NET_CONGESTION"]["fact"]) is (verdict == "warn")


def test_a_congestion_control_that_this_user_may_not_have() -> None:
    """An algorithm that the kernel reserves for privileged users, if it has one."""
    names = {
        kind: set(Path(f"/proc/sys/net/ipv4/tcp_{kind}_congestion_control").read_text().split())
        for kind in ("available", "allowed")
    }
    kept = sorted(names["available"] - names["allowed"])
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv(1)")
    if not kept:
        pytest.skip("this kernel has no congestion control that is not allowed to all")
    code = (
        "import json; from bagua_net._doctor import check, network as n\n"
        "print(json.dumps([[c.verdict, c.fix] for c in check.run((n.check_own_congestion_control,))]))"
    )
    done = subprocess.run(
        ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-c", code],
        env=os.environ | {"BAGUA_NET_CONGESTION": kept[0]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    ((verdict, fix),) = json.loads(done.stdout)
    assert (verdict, kept[0] in fix) == ("warn", True)


def test_the_systems_congestion_control_is_no_finding_of_its_own(sandbox: Sandbox) -> None:
    status, checks = diagnose(sandbox, BAGUA_NET_CONGESTION="")
    assert status == 0
    assert "BAGUA_NET_CONGESTION" not in checks


@pytest.mark.parametrize(("limit", "verdict", "fix"), [(4194303, "warn", "4194304"), (4194304, "ok", "")])
def test_the_send_buffer_that_may_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int, verdict: str, fix: str
) -> None:
    """With a substitute file: the real setting belongs to the whole machine."""
    monkeypatch.setattr(network, "SYSCTLS", tmp_path)
    assert list(check.run((network.check_wmem_max,))) == []
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "wmem_max").write_text(f"{limit}\n")
    (finding,) = check.run((network.check_wmem_max,))
    assert (finding.verdict, finding.fix) == (verdict, fix and f"sysctl -w net.core.wmem_max={fix}")
    assert str(limit) in finding.fact


def test_a_check_that_cannot_be_made_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "SYSCTLS", tmp_path)
    findings = list(check.run((network.check_backlog, plugin.check_rdma)))
    assert [(found.name, found.verdict) for found in findings] == [("backlog", "warn"), ("RDMA", "ok")]
    assert "could not be checked" in findings[0].fact
