# SPDX-License-Identifier: MIT
"""Values of parameters, from the environment and from NCCL's files: ``bagua-net params``, and who refuses them."""

from __future__ import annotations

import json

import pytest

from tests.package.sandbox import REFUSED, Sandbox

NSTREAMS = "BAGUA_NET_NSTREAMS"
MISSPELT = "BAGUA_NET_NSTREMS is not a parameter; did you mean BAGUA_NET_NSTREAMS?"


def parameter(sandbox: Sandbox, name: str, **settings: str) -> dict[str, object]:
    rows: list[dict[str, object]] = json.loads(sandbox.run("params", "--json", **settings).stdout)
    return next(row for row in rows if row["name"] == name)


def test_params_shows_values_and_refuses_bad_ones(sandbox: Sandbox) -> None:
    good = sandbox.run("params", "--json", BAGUA_NET_NSTREAMS="8")
    rows = {row["name"]: row for row in json.loads(good.stdout)}
    assert good.returncode == 0
    assert rows[NSTREAMS]["value"] == "8"
    assert rows[NSTREAMS]["set"] is True
    bad = sandbox.run("params", BAGUA_NET_NSTREAMS="999")
    assert bad.returncode == 1
    assert bad.stderr == f"bagua-net: {REFUSED}\n"
    assert "0 (999 refused, environment)" in bad.stdout


def test_params_takes_the_files_that_nccl_reads_after_the_environment(sandbox: Sandbox) -> None:
    sandbox.confs[0].write_text("BAGUA_NET_NSTREAMS=3\nBAGUA_NET_SNDBUF=1M\n")
    sandbox.system_conf.write_text("BAGUA_NET_NSTREAMS=5\nBAGUA_NET_RCVBUF=2M\n")
    shown = sandbox.run("params", BAGUA_NET_SNDBUF="4M").stdout
    for value, layer in (("3", sandbox.confs[0]), ("4M", "environment"), ("2M", sandbox.system_conf)):
        assert f" {value} ({layer}) " in shown
    found = parameter(sandbox, NSTREAMS)
    assert (found["value"], found["given"], found["layer"]) == ("3", "3", str(sandbox.confs[0]))
    other = str(sandbox.root / "none.conf")
    assert parameter(sandbox, NSTREAMS, NCCL_CONF_FILE=other)["layer"] == str(sandbox.system_conf)


@pytest.mark.gate
def test_a_bad_value_in_a_file_is_refused_with_the_file(sandbox: Sandbox) -> None:
    sandbox.confs[0].write_text("BAGUA_NET_NSTREAMS=999\n")
    said = f"bagua-net: {sandbox.confs[0]}: {REFUSED}\n"
    for arguments in (["params"], ["run", "--", "echo", "started"]):
        done = sandbox.run(*arguments)
        assert (done.returncode, done.stderr) == (1, said)
        assert "started" not in done.stdout
    assert sandbox.run("run", "--", "true", BAGUA_NET_NSTREAMS="8").returncode == 0


def test_run_refuses_a_bad_value_before_it_starts(sandbox: Sandbox) -> None:
    done = sandbox.run("run", "--", "echo", "started", BAGUA_NET_NSTREAMS="999")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"bagua-net: {REFUSED}\n")


@pytest.mark.gate
@pytest.mark.parametrize("arguments", [["params"], ["params", "--json"], ["status"], ["run", "--", "true"]])
def test_a_name_that_nobody_reads_is_pointed_out(sandbox: Sandbox, arguments: list[str]) -> None:
    expected = sandbox.run(*arguments)
    assert expected.stderr == ""
    done = sandbox.run(*arguments, BAGUA_NET_NSTREMS="8", BAGUA_NET_TEST_X="1", BAGUA_NET_BENCH_X="1")
    assert (done.returncode, done.stderr) == (expected.returncode, f"bagua-net: {MISSPELT}\n")
    sandbox.confs[0].write_text("BAGUA_NET_NSTREMS=8\n")
    assert sandbox.run(*arguments).stderr == f"bagua-net: {sandbox.confs[0]}: {MISSPELT}\n"
