# SPDX-License-Identifier: MIT
"""`bagua-net doctor --peers` without a network: two parts on this host, and the verdicts on what hosts say. What stands
between real ones is in tests/netns/test_peers.py."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bagua_net._bench.ranks.rendezvous import MAX_ROW
from bagua_net._doctor.check import Check
from bagua_net._doctor.nccl_job import STEPS
from bagua_net._doctor.nccl_ranks import Report
from bagua_net._doctor.peers import job, link, verdicts
from bagua_net._doctor.peers.facts import Facts, Listening, Nic, Reach
from bagua_net._doctor.peers.host import MARK
from bagua_net._doctor.peers.probe import Answer, Rate, Way
from bagua_net._doctor.peers.verdicts import Measured
from bagua_net._settings import identity, parameters
from bagua_net._settings.identity import Identity
from tests.package.sandbox import Sandbox

_NIC = Nic("eth0", "10.0.0.1", 1500, 25_000, True)
_ONE = Facts("one", "here", "1.0", True, "", "none", "NCCL 2.30.7", [_NIC], {}, {}, [], [32768, 60999], "", 8)
_OTHER = replace(_ONE, name="other", place="there", nics=[replace(_NIC, address="10.0.0.2")])
_ANSWER = Answer(Way("10.0.0.1", "eth0", "10.0.0.2", 4000), "", 0.0002, "10.0.0.1", "its name")
_REACH = Reach(_ONE, _OTHER, [_ANSWER], Listening("its name", "there", {"10.0.0.2": 4000}, {}, {}))
_GBIT = 125e6


def _rate(reach: Reach, *gbits: float, repeated: float = 0.0, here: float = 0.1, there: float = 0.1) -> Check:
    """What is said of 1, 2, 4, … flows that carry so much."""
    rates = [Rate(1 << at, value * _GBIT, repeated, here) for at, value in enumerate(gbits)]
    return verdicts.flows(reach, _ANSWER, [Measured(rate, there) for rate in rates])


def test_both_parts_on_this_host(sandbox: Sandbox) -> None:
    options = ["--json", "--no-rates", "--peers", "here", "--through", "env PEER={}"]
    done = sandbox.run("doctor", *options, NCCL_SOCKET_IFNAME="lo")
    found = {each["name"]: each for each in json.loads(done.stdout)}
    ways = {name: each for name, each in found.items() if " → " in name}
    assert len(ways) == 2  # both directions
    assert {each["verdict"] for each in ways.values()} == {"ok"}
    assert found["versions"]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--peers", ","], "--peers names hosts"),
        (["--peers", "a", "--rank", "1"], "--peers reaches the hosts itself"),
        (["--peers", "-oProxyCommand=x"], "--peers names hosts"),
        (["--through", "rsh"], "--through and --python need --peers"),
        (["--no-rates"], "--no-rates is for several hosts"),
        (["--peers", "a", "--libnccl", __file__], "--libnccl names a file of this machine"),
        (["--rank", "1"], "need --rendezvous"),
        (["--rendezvous", "10.0.0.1:29500"], "--rank and --ranks"),
    ],
)
def test_options_that_do_not_go_together(sandbox: Sandbox, options: list[str], said: str) -> None:
    done = sandbox.run("doctor", *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_hosts_that_differ() -> None:
    old = replace(_OTHER, version="0.9", on=False, problem="NCCL_NET_PLUGIN is not set; set it", nccl="NCCL 2.21.5")
    found = {each.name: each for each in verdicts.agreement([_ONE, old])}
    assert found["versions"].fact == "one: bagua_net 1.0; other: bagua_net 0.9"
    assert found["activation"].verdict == "fail"
    assert found["activation"].fact == "one: on; other: off (NCCL_NET_PLUGIN is not set)"
    assert found["NCCL"].fact == "one: NCCL 2.30.7; other: NCCL 2.21.5"
    assert (found["identity"].verdict, found["identity"].fact) == ("ok", "none")
    stranger = replace(_OTHER, identity="secret 0badcafe, encrypted")
    found = {each.name: each for each in verdicts.agreement([_ONE, stranger])}
    assert found["identity"].verdict == "fail"
    assert found["identity"].fact == "one: none; other: secret 0badcafe, encrypted"


def test_secrets_are_compared(tmp_path: Path) -> None:
    """By what is in the files, without the line breaks at their ends."""
    shown = []
    for number, text in enumerate(("the secret of this test", "the secret of this test\n", "another secret, as long")):
        path = tmp_path / f"secret{number}"
        path.write_text(text)
        shown.append(Identity(str(path), False, False).fingerprint())
    assert shown[0] == shown[1] != shown[2]
    assert "secret of this" not in shown[0]


def test_a_file_that_no_job_would_take_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe would hold up the examination of its host."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    monkeypatch.setenv("BAGUA_NET_SECRET_FILE", str(tmp_path / "pipe"))
    assert identity.of(parameters.read()).fingerprint() == "no secret that can be used"


@pytest.mark.parametrize(
    ("ahead", "error", "said"),
    [(30.0, 0.1, ["30.0 s ahead of that of one"]), (-2.0, 0.5, ["2.0 s behind that of one"]), (2.0, 1.5, [])],
)
def test_clocks(ahead: float, error: float, said: list[str]) -> None:
    assert [each.fact for each in verdicts.clocks(_ONE, [(_OTHER, ahead, error)])] == said


def test_a_flow_limit_of_a_cloud() -> None:
    amazon = replace(_REACH, one=replace(_ONE, vendor="Amazon EC2"))
    found = _rate(amazon, 4.9, 9.8, 19.5, 24.0)
    assert found.verdict == "ok"
    assert "8 carry 4.9 times as much as one" in found.fact
    assert "5 Gbit/s a flow" in found.fact
    assert "AWS" not in _rate(amazon, 24.0, 24.0, 24.0, 24.0).fact


def test_less_than_the_card() -> None:
    assert _rate(_REACH, 9.0, 9.1, 9.0, 9.1).verdict == "warn"
    assert _rate(_REACH, 20.0, 23.0, 23.0, 23.0).verdict == "ok"
    slower = replace(_REACH, other=replace(_OTHER, nics=[replace(_OTHER.nics[0], speed_mbps=10_000)]))
    assert _rate(slower, 9.0, 9.1, 9.0, 9.1).verdict == "ok"


@pytest.mark.parametrize("side", ["here", "there"])
def test_a_processor_that_is_the_limit(side: str) -> None:
    """One flow keeps one busy, and eight flows have eight."""
    found = _rate(_REACH, 3.0, 5.9, 11.0, 20.0, **{side: 0.95})
    assert found.verdict == "ok"
    assert "the processors limit this measurement" in found.fact
    assert "a limit for each flow" not in found.fact


def test_losses() -> None:
    assert "2.0% of the packets are sent again" in _rate(_REACH, 20.0, 23.0, repeated=0.02).fact


def test_a_tunnel() -> None:
    inside = replace(_REACH, one=replace(_ONE, nics=[replace(_NIC, tunnel="wireguard")]))
    found = {each.name: each for each in verdicts.reachable(inside, _REACH)}
    assert found["one → other: tunnel"].verdict == "warn"


def test_an_address_that_two_hosts_have() -> None:
    elsewhere = replace(_REACH, answers=[replace(_ANSWER, name="another's name")])
    (found,) = verdicts.reachable(elsewhere, _REACH)
    assert found.verdict == "fail"
    assert "10.0.0.2 of other (eth0): another host answers there" in found.fact


def test_an_address_that_both_have() -> None:
    own = {"172.17.0.1": "docker0"}
    bridge = replace(_NIC, name="docker0", address="172.17.0.1")
    both = replace(_REACH, one=replace(_ONE, others=own), other=replace(_OTHER, nics=[bridge]), answers=[])
    (found,) = verdicts.reachable(both, _REACH)
    assert "172.17.0.1 of other (docker0): one has it as well" in found.fact
    assert "NCCL_SOCKET_IFNAME=^=docker0" in found.fix


def test_ports_that_a_job_has() -> None:
    taken = replace(_REACH.listening, ports={}, problems={"10.0.0.2": "Address already in use"})
    full = replace(_REACH, answers=[], other=replace(_OTHER, ports=[20000, 20001]), listening=taken)
    (found,) = verdicts.reachable(full, _REACH)
    assert found.fact == "other cannot listen at 10.0.0.2: no port of 20000-20001 is free (Address already in use)"


def test_a_card_of_several_that_is_not_reached() -> None:
    """The other's, so it is told to the other."""
    two = replace(_OTHER, nics=[*_OTHER.nics, replace(_NIC, name="ib0", address="10.1.0.2")])
    deaf = Answer(Way("10.0.0.1", "eth0", "10.1.0.2", 4000), "no answer")
    (found,) = verdicts.reachable(replace(_REACH, other=two, answers=[_ANSWER, deaf]), _REACH)
    assert found.verdict == "warn"
    assert "ib0 (10.1.0.2) of other is not reached: no answer" in found.fact
    assert found.fix.startswith("on other NCCL_SOCKET_IFNAME==eth0")


def test_names_that_are_not_common() -> None:
    ens = replace(_REACH, one=_OTHER, other=_ONE, answers=[replace(_ANSWER, way=_ANSWER.way._replace(device="ens5"))])
    hosts = {0: _ONE, 1: replace(_OTHER, nics=[replace(_OTHER.nics[0], name="ens5")])}
    (found,) = verdicts.names(hosts, {(0, 1): _REACH, (1, 0): ens})
    assert "NCCL_SOCKET_IFNAME==ens5,eth0" in found.fact
    assert list(verdicts.names(hosts, {(0, 1): _REACH, (1, 0): _REACH})) == []
    hosts[1].nics.append(replace(_NIC, address="10.1.0.2"))  # another network, by a name that the first uses
    (found,) = verdicts.names(hosts, {(0, 1): _REACH, (1, 0): ens})
    assert "NCCL takes its own" in found.fact


def test_a_host_that_has_nothing_but_itself() -> None:
    own = replace(_OTHER, nics=[replace(_NIC, name="lo", address="127.0.0.1")], left_out={"eth0": "no carrier"})
    (found,) = verdicts.reachable(replace(_REACH, other=own, answers=[]), _REACH)
    assert found.fact == "other has no interface to use but lo (eth0: no carrier)"


# ---- a job over NCCL ----

_RANKS = {"one": _ONE, "other": _OTHER}
_DONE = Report({step: step for step in STEPS} | {"network": "BaguaNet"})
_WAITS = Report({"load": "", "unique id": ""})


def test_a_job_over_another_network() -> None:
    """On one of the hosts: where NCCL's own sockets do not keep the job from its result."""
    sockets = replace(_DONE, facts=_DONE.facts | {"network": "Socket"})
    off = {"one": _ONE, "other": replace(_OTHER, problem="NCCL_NET=Socket asks for another network; unset it")}
    found = {each.name: each for each in job.findings(off, {"one": _DONE, "other": sockets}, {})}
    assert list(found) == ["other: NCCL network", "NCCL allreduce"]
    assert found["other: NCCL network"] == Check(
        "other: NCCL network", "fail", "Socket, not BaguaNet: NCCL_NET=Socket asks for another network", "unset it"
    )


def test_a_rank_that_waits_says_whom_it_tries_to_reach() -> None:
    """Itself last."""
    waiting = replace(_WAITS, silent=[("10.0.0.1", 4000), ("10.9.9.9", 4000), ("10.0.0.2", 4001)])
    (found,) = job.findings(_RANKS, {"one": waiting, "other": _WAITS}, {})
    assert (found.name, found.verdict) == ("NCCL init", "fail")
    assert found.fact == "one has no answer from other (10.0.0.2, port 4001) within 60 s"
    assert found.fix.endswith("TCP from one to the ports 32768-60999")
    (found,) = job.findings(_RANKS, {"one": waiting, "other": replace(_WAITS, reason="failed")}, {})
    assert found.fact == "other failed"


def test_a_job_of_several_releases_that_stands_still() -> None:
    old = {"one": _ONE, "other": replace(_OTHER, nccl="NCCL 2.21.5")}
    (found,) = job.findings(old, {"one": _WAITS, "other": _WAITS}, {})
    assert found.fact == "not done within 60 s: one, other"
    assert found.fix == "the same NCCL on all hosts"


def test_a_late_answer_is_not_the_next_request_s(tmp_path: Path) -> None:
    slow, may_answer = tmp_path / "slow.py", tmp_path / "fifo"
    slow.write_text(
        "import sys\n"
        f"for line in sys.stdin:\n    open({str(may_answer)!r}).read()\n    print({MARK + '{}'!r}, flush=True)\n"
    )
    os.mkfifo(may_answer)
    with link.Commands(["there"], f"{sys.executable} {slow}", "python3") as hosts:
        late = {"lost": "no answer within 0.05 s"}
        assert hosts.ask({1: {"do": "first"}}, 0.05) == {1: late}
        may_answer.write_text("")
        may_answer.write_text("")  # its settings were a line as well
        assert hosts.ask({1: {"do": "second"}}, 30) == {1: late}


def test_an_answer_that_is_too_long_is_a_finding() -> None:
    assert link._fitting({"answers": "x"}) == {"answers": "x"}
    assert "examine fewer hosts" in link._fitting({"answers": "x" * MAX_ROW})["lost"]


def test_a_host_that_is_lost_is_the_cause() -> None:
    """Whatever the others' ranks say, and also where it has none."""
    failed = replace(_WAITS, reason="failed: remote process exited")
    (found,) = job.findings(_RANKS, {"one": failed}, {"other": "its command ended with status 255"})
    assert (found.name, found.fact) == ("NCCL init", "other: its command ended with status 255")
    (found,) = job.findings(_RANKS, {}, {"one": "no answer within 90 s"})
    assert (found.name, found.fix) == ("NCCL load", "look at that host")
