# SPDX-License-Identifier: MIT
"""``bagua-net`` as a user runs it: its output, its changes of files, its exit status."""

from __future__ import annotations

import ast
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import bagua_net
from bagua_net._activation import launchers
from tests.package.sandbox import Sandbox, as_user, sandboxed
from tests.support import nccl_wheels

LIBRARY = str(bagua_net.plugin_path())
NASTY = {
    "PLAIN": "/opt/lib/libnccl-net-bagua.so",
    "SPACES": "a b\tc",
    "QUOTES": 'it\'s "so"',
    "DOLLARS": "$HOME $(id) `id` ${X}",
    "BACKSLASH": "a\\b\\'c\\",
    "EMPTY": "",
    "UNICODE": "größe",
}


def one_line(text: str) -> bool:
    return len(text.strip().splitlines()) == 1


def complete(sandbox: Sandbox, *words: str) -> set[str]:
    """What bash would offer for the last word."""
    line = {"COMP_WORDS": " ".join(["bagua-net", *words]), "COMP_CWORD": str(len(words))}
    return set(sandbox.run(_BAGUA_NET_COMPLETE="complete_bash", **line).stdout.split())


@pytest.mark.gate
def test_a_shell_completes_commands_options_and_values(sandbox: Sandbox) -> None:
    assert "_BAGUA_NET_COMPLETE=complete_bash" in sandbox.run("--show-completion", SHELL="/bin/bash").stdout
    assert {"enable", "env"} <= complete(sandbox, "en")
    assert {"nccl", "step"} <= complete(sandbox, "bench", "")
    assert complete(sandbox, "bench", "nccl", "--lib") == {"--libnccl"}
    assert complete(sandbox, "bench", "--transport", "g") == {"gloo"}


@pytest.mark.gate
def test_an_error_is_one_line_whatever_the_width(sandbox: Sandbox) -> None:
    last = sandbox.run("bench", "--op", "allsum", COLUMNS="40").stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert last.endswith("'sendrecv'.")


def test_version(sandbox: Sandbox) -> None:
    assert sandbox.run("--version").stdout == bagua_net.__version__ + "\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bogus"],
        ["enable", "--system", "--conf", "x"],
        ["env", "--format", "csh"],
        ["run"],
    ],
)
def test_wrong_usage_is_2_and_says_why_on_stderr(sandbox: Sandbox, arguments: list[str]) -> None:
    done = sandbox.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Error:" in done.stderr


def test_a_stream_of_another_encoding_gets_plain_characters(sandbox: Sandbox) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    assert "0 ... 64" in sandbox.run("params", **ascii_only).stdout
    assert json.loads(sandbox.run("params", "--json", **ascii_only).stdout)[0]["range"] == "0 … 64"
    home = sandbox.root / "größe"
    home.mkdir()
    assert str(home) in sandbox.run("enable", "--dry-run", HOME=str(home), **ascii_only).stdout


def _own_characters() -> set[str]:
    """Beside ASCII, of what the package's programs may print."""
    found: set[str] = set()
    for path in Path(bagua_net.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {char for char in node.value if not char.isascii()}
    return found - {"⁺"}  # of a docstring about an algorithm


def test_each_of_the_command_s_own_characters_has_a_plain_one() -> None:
    text = "".join(sorted(_own_characters()))
    assert {"…", "→", "←", "█"} <= set(text)
    printed = subprocess.run(
        [sys.executable, "-c", f"from bagua_net._cli import streams; streams.prepare(); print({text!a})"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    ).stdout.decode()
    assert printed.isascii()
    assert "?" not in printed


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_is_no_error(sandbox: Sandbox, closed: str) -> None:
    command = f"{sandboxed(sandbox.root)} params {closed}"
    done = subprocess.run(["sh", "-c", command], env=sandbox.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- enable and disable ----


@pytest.mark.parametrize("before", [None, b"", b"NCCL_DEBUG=INFO\n", b"NCCL_DEBUG=INFO\r\nX=1"])
def test_enable_and_disable_leave_no_trace(sandbox: Sandbox, before: bytes | None) -> None:
    if before is not None:
        for conf in sandbox.confs:
            conf.write_bytes(before)
    untouched = sandbox.files()
    enabled = sandbox.run("enable")
    assert (enabled.returncode, enabled.stdout) == (0, ""), enabled.stderr
    for conf, copy in zip(sandbox.confs, sandbox.copies, strict=True):
        assert f"NCCL_NET_PLUGIN={copy}\nNCCL_NET=BaguaNet\nNCCL_NET_PLUGIN_REF_COUNT=1\n" in conf.read_text()
        assert copy.read_bytes() == Path(LIBRARY).read_bytes()
    once = sandbox.files()
    assert "enabled already" in sandbox.run("enable").stderr
    assert sandbox.files() == once
    assert sandbox.run("status").returncode == 0
    assert sandbox.run("disable").returncode == 0
    assert sandbox.files() == untouched
    assert not any(copy.parent.exists() for copy in sandbox.copies)
    assert "was not enabled" in sandbox.run("disable").stderr
    assert sandbox.files() == untouched


def test_two_homes_are_told(sandbox: Sandbox) -> None:
    told = sandbox.run("enable").stderr.splitlines()
    assert [line.split(": ")[0] for line in told[:2]] == [str(conf) for conf in sandbox.confs]
    assert told[2].startswith("in both homes: ")
    removed = sandbox.run("disable").stderr.splitlines()[2:]
    assert removed == [f"{copy.parent}: removed" for copy in sandbox.copies]


def test_one_home_is_written_once(sandbox: Sandbox) -> None:
    (sandbox.root / "database-home").rmdir()
    (sandbox.root / "database-home").symlink_to("home")
    assert len(sandbox.run("enable").stderr.splitlines()) == 1


def test_dry_run_shows_a_diff_and_changes_nothing(sandbox: Sandbox) -> None:
    sandbox.confs[0].write_bytes(b"NCCL_DEBUG=INFO")
    before = sandbox.files()
    dry = sandbox.run("enable", "--dry-run")
    assert f"{sandbox.copy}: the library would be copied here" in dry.stderr
    shown = dry.stdout
    assert f"+++ {sandbox.confs[0]}\n" in shown
    assert f"+NCCL_NET_PLUGIN={sandbox.copy}\n" in shown
    assert "\n NCCL_DEBUG=INFO\n\\ No newline at end of file\n" in shown
    assert "--- /dev/null\n" in shown
    assert sandbox.files() == before
    sandbox.run("enable")
    enabled = sandbox.files()
    assert f"-NCCL_NET_PLUGIN={sandbox.copy}\n" in sandbox.run("disable", "--dry-run").stdout
    assert sandbox.files() == enabled


def test_the_diff_applies(sandbox: Sandbox) -> None:
    patch = shutil.which("patch")
    if patch is None:
        pytest.skip("no patch(1) here")
    conf = sandbox.confs[0]
    conf.write_bytes(b"NCCL_DEBUG=INFO")
    diff = sandbox.run("enable", "--conf", str(conf), "--dry-run").stdout
    subprocess.run([patch, "-s", str(conf)], input=diff, text=True, check=True, timeout=30, cwd=sandbox.root)
    patched = conf.read_bytes()
    conf.write_bytes(b"NCCL_DEBUG=INFO")
    sandbox.run("enable", "--conf", str(conf))
    assert patched == conf.read_bytes()


def test_system_points_at_a_copy_that_every_user_can_read(sandbox: Sandbox) -> None:
    untouched = sandbox.files()
    assert sandbox.run("enable", "--system").returncode == 0
    copy = sandbox.root / "usr" / "bagua-net" / "libnccl-net-bagua.so"
    assert f"NCCL_NET_PLUGIN={copy}\n" in sandbox.system_conf.read_text()
    assert copy.stat().st_mode & 0o005 == 0o005
    assert not any(conf.exists() for conf in sandbox.confs)
    sandbox.run("disable", "--system")
    assert sandbox.files() == untouched


@pytest.mark.gate
def test_the_copy_stays_while_another_file_names_it(sandbox: Sandbox) -> None:
    conf = sandbox.root / "job.conf"
    sandbox.run("enable", "--conf", str(conf))
    sandbox.run("enable")
    sandbox.run("disable")
    assert sandbox.copy.exists()
    assert sandbox.run("status", NCCL_CONF_FILE=str(conf)).returncode == 0
    sandbox.run("disable", "--conf", str(conf))
    assert not sandbox.copy.exists()
    assert not conf.exists()


def test_enable_refreshes_the_copy(sandbox: Sandbox) -> None:
    sandbox.run("enable")
    sandbox.copy.write_bytes(b"an older version")
    sandbox.run("enable")
    assert sandbox.copy.read_bytes() == Path(LIBRARY).read_bytes()


def test_another_setting_in_the_file_is_refused_and_forced_over(sandbox: Sandbox) -> None:
    sandbox.confs[1].write_bytes(b"NCCL_NET=Socket\n")
    before = sandbox.files()
    refused = sandbox.run("enable")
    assert refused.returncode == 1
    assert f"{sandbox.confs[1]} has NCCL_NET=Socket" in refused.stderr
    assert one_line(refused.stderr)
    assert sandbox.files() == before
    assert sandbox.run("enable", "--force").returncode == 0
    sandbox.run("disable")
    assert sandbox.files() == before


def test_active_rdma_is_refused_and_forced_over(sandbox: Sandbox) -> None:
    sandbox.add_rdma_port("mlx5_0", "1: DOWN")
    assert sandbox.run("enable", "--dry-run").returncode == 0
    sandbox.add_rdma_port("mlx5_1", "4: ACTIVE")
    refused = sandbox.run("enable")
    assert refused.returncode == 1
    assert "mlx5_1:1 (InfiniBand, 100 Gb/sec (4X EDR))" in refused.stderr
    assert "mlx5_0" not in refused.stderr
    assert one_line(refused.stderr)
    assert not any(conf.exists() for conf in sandbox.confs)
    assert sandbox.run("enable", "--force").returncode == 0


@pytest.mark.gate
def test_an_nccl_that_takes_no_path_is_refused_with_the_way_out(sandbox: Sandbox) -> None:
    settings = sandbox.with_nccl(nccl_wheels.library("2.18.3"))
    refused = sandbox.run("enable", **settings)
    assert refused.returncode == 1
    assert "NCCL 2.18.3" in refused.stderr
    assert "bagua-net run -- COMMAND" in refused.stderr
    assert not any(conf.exists() for conf in sandbox.confs)


def test_a_path_that_nccl_would_cut_is_refused(sandbox: Sandbox) -> None:
    refused = sandbox.run("enable", XDG_DATA_HOME=str(sandbox.root / ("x" * 200) / ("y" * 60)))
    assert refused.returncode == 1
    assert "NCCL keeps 254" in refused.stderr
    assert not any(conf.exists() for conf in sandbox.confs)


def test_enable_says_when_the_environment_overrules_the_file(sandbox: Sandbox) -> None:
    done = sandbox.run("enable", NCCL_NET="Socket")
    assert f"{sandbox.confs[0]}: written\n" in done.stderr
    assert "enabled" not in done.stderr
    assert "not in effect where NCCL_NET=Socket is set" in done.stderr
    assert 'ENV NCCL_NET="BaguaNet"\n' in done.stderr
    assert '- name: NCCL_NET\n  value: "BaguaNet"\n' in done.stderr
    assert "ENV NCCL_NET_PLUGIN" not in done.stderr
    done = sandbox.run("enable", NCCL_NET_PLUGIN="")
    assert f'ENV NCCL_NET_PLUGIN="{sandbox.copy}"\n' in done.stderr
    assert "NCCL_NET_PLUGIN= (environment) names nothing" in sandbox.run("status", NCCL_NET_PLUGIN="").stdout


@pytest.mark.gate
def test_enable_says_when_another_file_stands_in_for_this_one(sandbox: Sandbox) -> None:
    conf = sandbox.root / "cluster.conf"
    for arguments in (["enable", "--dry-run"], ["enable"]):
        done = sandbox.run(*arguments, NCCL_CONF_FILE=str(conf))
        (said,) = [line for line in done.stderr.splitlines() if "NCCL_CONF_FILE" in line]
        assert "NCCL will not read .nccl.conf" in said
        assert f"`bagua-net enable --conf {conf}`" in said
        assert "not in effect" not in done.stderr
    for confs in (["--system"], ["--conf", str(conf)]):
        assert (
            "NCCL_CONF_FILE is set" not in sandbox.run("enable", *confs, "--dry-run", NCCL_CONF_FILE=str(conf)).stderr
        )
    assert sandbox.run("enable", "--conf", str(conf), NCCL_CONF_FILE=str(conf)).returncode == 0
    assert sandbox.run("status", NCCL_CONF_FILE=str(conf)).returncode == 0


def test_a_user_without_a_home_is_told_what_to_do(sandbox: Sandbox) -> None:
    (sandbox.root / "database-home").rmdir()
    done = sandbox.run("enable", HOME="/nonexistent")
    assert done.returncode == 1
    assert "use --conf FILE" in done.stderr
    assert sandbox.files() == {}
    conf = str(sandbox.root / "job.conf")
    done = sandbox.run("enable", "--conf", conf, HOME="/nonexistent", XDG_DATA_HOME=str(sandbox.root / "data"))
    assert done.returncode == 0, done.stderr
    assert (sandbox.root / "data" / "bagua-net" / "libnccl-net-bagua.so").is_file()
    assert not Path("/nonexistent").exists()


def test_a_home_that_is_read_only_is_told_before_anything_is_written(sandbox: Sandbox) -> None:
    """As / is, the home of a random uid."""
    shutil.rmtree(sandbox.root / "database-home")
    sandbox.home.chmod(0o555)
    before = sandbox.files()
    for arguments in (["enable"], ["enable", "--dry-run"]):
        done = as_user(sandbox, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{sandbox.confs[0]}: this user may not write there; use --conf FILE" in done.stderr
        assert "NCCL_CONF_FILE=FILE" in done.stderr
        assert one_line(done.stderr)
    conf = str(sandbox.root / "job.conf")
    done = as_user(sandbox, "enable", "--conf", conf)
    assert done.returncode == 1
    assert "set XDG_DATA_HOME to a directory that it may write to" in done.stderr
    assert sandbox.files() == before
    assert as_user(sandbox, "enable", "--conf", conf, XDG_DATA_HOME=str(sandbox.root)).returncode == 0
    checks = {one["name"]: one for one in json.loads(as_user(sandbox, "doctor", "--json").stdout)}
    assert (checks["copy"]["verdict"], checks["path"]["verdict"]) == ("warn", "ok")
    sandbox.home.chmod(0o755)


def test_a_directory_that_is_missing_is_named_and_nothing_is_left(sandbox: Sandbox) -> None:
    before = sandbox.files()
    for option in ([], ["--dry-run"]):
        done = sandbox.run("enable", "--conf", str(sandbox.root / "missing" / "x.conf"), *option)
        assert done.returncode == 1
        assert f"there is no directory {sandbox.root / 'missing'}" in done.stderr
        assert one_line(done.stderr)
        assert sandbox.files() == before


def test_a_user_without_a_home_is_not_told_that_nothing_was_enabled(sandbox: Sandbox) -> None:
    (sandbox.root / "database-home").rmdir()
    done = sandbox.run("enable", HOME="/nonexistent", XDG_DATA_HOME=str(sandbox.root / "data"))
    assert (done.returncode, "use --conf FILE" in done.stderr) == (1, True)
    assert sandbox.files() == {}


# ---- env ----


@pytest.mark.gate
def test_every_format_names_the_library(sandbox: Sandbox) -> None:
    for form in launchers.FORMATS:
        done = sandbox.run("env", "--format", form, BAGUA_NET_NSTREAMS="8")
        assert done.returncode == 0, done.stderr
        for text in (LIBRARY, "BaguaNet", "BAGUA_NET_NSTREAMS", "8"):
            assert text in done.stdout, form
    assert sandbox.files() == {}


def test_the_format_is_that_of_a_posix_shell_unless_another_is_named(sandbox: Sandbox) -> None:
    assert sandbox.run("env").stdout == sandbox.run("env", "--format", "sh").stdout


@pytest.mark.parametrize("shell", ["sh", "bash", "fish"])
def test_a_shell_reads_back_what_was_printed(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    script = launchers.render("fish" if shell == "fish" else "sh", NASTY) + "\nexec env -0"
    done = subprocess.run([program, "-c", script], capture_output=True, check=True, timeout=30)
    found = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if "=" in line)
    assert {name: found[name] for name in NASTY} == NASTY


def test_what_the_tests_start_has_a_home_of_its_own(home: Path) -> None:
    """Shells and matplotlib leave files in the home."""
    done = subprocess.run(["sh", "-c", "cd && pwd -P"], capture_output=True, text=True, check=True, timeout=30)
    assert Path(done.stdout.strip()) == home.resolve()
    assert home.resolve() != Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()


def test_json_reads_back() -> None:
    assert json.loads(launchers.render("json", NASTY)) == NASTY


def test_kubernetes_quotes_what_it_would_substitute() -> None:
    lines = launchers.render("k8s", NASTY).splitlines()
    assert lines[0] == "env:"
    names = [line.removeprefix("- name: ") for line in lines[1::2]]
    values = [json.loads(line.removeprefix("  value: ")) for line in lines[2::2]]
    assert {name: value.replace("$$(", "$(") for name, value in zip(names, values, strict=True)} == NASTY
    assert "$$(id)" in dict(zip(names, values, strict=True))["DOLLARS"]


def test_dockerfile_escapes_what_it_would_substitute() -> None:
    assert launchers.render("docker", {"A": 'a "b" $c \\'}) == 'ENV A="a \\"b\\" \\$c \\\\"'


def test_deepspeed_gets_no_line_that_its_parser_fails_on() -> None:
    # As deepspeed/launcher/runner.py reads .deepspeed_env: every line must have two sides.
    lines = launchers.render("deepspeed", NASTY).split("\n")
    assert dict(line.split("=", maxsplit=1) for line in lines) == NASTY


@pytest.mark.parametrize(
    ("form", "expected"),
    [("mpirun", ["-x", "A=/größe/b@c~d", "-x", "B=^lo"]), ("slurm", ["--export=ALL,A=/größe/b@c~d,B=^lo"])],
)
def test_options_are_for_a_shell_that_splits_what_a_command_prints(form: str, expected: list[str]) -> None:
    """As the documents have it: mpirun $(bagua-net env --format mpirun)."""
    script = "printf '%s\\0' $(printf %s \"$TEXT\")"
    text = launchers.render(form, {"A": "/größe/b@c~d", "B": "^lo"})
    done = subprocess.run(["sh", "-c", script], env={**os.environ, "TEXT": text}, capture_output=True, timeout=30)
    assert done.stdout.decode().split("\0")[:-1] == expected


@pytest.mark.parametrize("form", ["mpirun", "slurm"])
@pytest.mark.parametrize("name", ["SPACES", "QUOTES", "DOLLARS", "BACKSLASH"])
def test_options_refuse_what_that_shell_would_take_apart(form: str, name: str) -> None:
    with pytest.raises(bagua_net.ConflictingSetting, match=f"^{name}=.* holds .*bagua-net env"):
        launchers.render(form, {name: NASTY[name]})


def test_slurm_refuses_what_it_cannot_carry() -> None:
    assert launchers.render("slurm", {"A": "1", "B": "2"}) == "--export=ALL,A=1,B=2"
    with pytest.raises(bagua_net.ConflictingSetting, match="env --format sh"):
        launchers.render("slurm", {"A": "1,2"})


# ---- run ----


def test_run_gives_the_command_the_variables_its_arguments_and_its_exit_status(sandbox: Sandbox) -> None:
    script = 'printf "%s\\n" "$NCCL_NET_PLUGIN" "$NCCL_NET" "$@"; exit 7'
    done = sandbox.run("run", "--", "sh", "-c", script, "sh", "--force", "a b")
    assert done.stdout.splitlines() == [LIBRARY, "BaguaNet", "--force", "a b"]
    assert done.returncode == 7
    assert sandbox.run("run", "sh", "-c", "exit 3").returncode == 3


def test_run_gives_the_command_the_signals_that_python_ignores(sandbox: Sandbox) -> None:
    """A program whose reader ends would write for ever, and a shell cannot undo it."""
    done = sandbox.run("run", "--", "sh", "-c", "yes | head -n 1; grep SigIgn /proc/self/status")
    assert done.stdout.splitlines()[0] == "y"
    ignored = int(done.stdout.split()[-1], 16)
    assert not ignored & sum(1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))


def test_run_reports_a_command_that_is_not_there(sandbox: Sandbox) -> None:
    missing = sandbox.run("run", "no-such-command")
    assert missing.returncode == 127
    assert missing.stderr == "bagua-net: no-such-command: no such command\n"
    assert sandbox.run("run", str(sandbox.home)).returncode == 126


def test_run_passes_over_a_directory_that_it_may_not_read(sandbox: Sandbox) -> None:
    locked = sandbox.root / "locked"
    locked.mkdir(mode=0)
    command = [sys.executable, "-m", "bagua_net", "run", "no-such-command"]
    if os.geteuid() == 0:  # root can read everything, unless it drops that capability
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv(1): root may read every directory")
        command = [shutil.which("setpriv") or "", "--bounding-set=-dac_override,-dac_read_search", *command]
    environment = sandbox.environment(PATH=f"{locked}:{os.environ['PATH']}")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (127, "bagua-net: no-such-command: no such command\n")


def test_run_tells_a_command_that_may_not_be_executed_from_one_that_is_not_there(sandbox: Sandbox) -> None:
    (sandbox.home / "plain-file").write_text("no program")
    done = sandbox.run("run", "plain-file", PATH=f"{sandbox.home}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (126, "bagua-net: plain-file: Permission denied\n")


def test_run_does_not_overwrite_another_plugin(sandbox: Sandbox) -> None:
    refused = sandbox.run("run", "true", NCCL_NET_PLUGIN="other")
    assert refused.returncode == 1
    assert "NCCL_NET_PLUGIN=other" in refused.stderr
    assert sandbox.run("run", "--force", "--", "true", NCCL_NET_PLUGIN="other").returncode == 0


@pytest.mark.gate
def test_run_finds_the_library_for_an_nccl_that_takes_no_path(sandbox: Sandbox) -> None:
    settings = sandbox.with_nccl(nccl_wheels.library("2.18.3"))
    load = "import ctypes, os; ctypes.CDLL(f'libnccl-net-{os.environ[\"NCCL_NET_PLUGIN\"]}.so'); print('loaded')"
    done = sandbox.run("run", "--", sys.executable, "-c", load, **settings)
    assert (done.stdout, done.returncode) == ("loaded\n", 0), done.stderr


# ---- all commands ----


@pytest.mark.gate
@pytest.mark.parametrize("command", [["status"], ["run", "--", "true"]])
def test_an_interface_that_does_not_exist_is_named_before_a_job_starts(sandbox: Sandbox, command: list[str]) -> None:
    sandbox.run("enable")
    there = sandbox.run(*command, NCCL_SOCKET_IFNAME="=lo")
    missing = sandbox.run(*command, NCCL_SOCKET_IFNAME="=absent0")
    for value, hint in {
        "127.0.0.1": (
            "NCCL_SOCKET_IFNAME takes names: =lo for 127.0.0.1, or BAGUA_NET_ADDRESS_PREFIX=127.0.0.1 in its place"
        ),
        '"lo"': "the quotes are part of the value; leave them out",
        "=lo ": "a blank is part of the value; leave it out",
    }.items():
        told = sandbox.run(*command, NCCL_SOCKET_IFNAME=value)
        assert told.stderr == f"bagua-net: NCCL_SOCKET_IFNAME={value} (environment): no interface to use; {hint}\n"
    family = sandbox.run(*command, NCCL_SOCKET_FAMILY="IPV6")
    assert "NCCL_SOCKET_FAMILY=IPV6 (environment): not AF_INET or AF_INET6; unset it" in family.stderr
    expected = "bagua-net: NCCL_SOCKET_IFNAME==absent0 (environment): no interface to use; this host has "
    assert there.stderr == ""
    assert missing.stderr.startswith(expected)
    assert "lo (127.0.0.1)" in missing.stderr
    assert missing.returncode == 0, "the job may run on other machines"


@pytest.mark.gate
@pytest.mark.parametrize("command", [["status"], ["run", "--", "true"]])
def test_a_prefix_that_no_interface_is_in_is_named_before_a_job_starts(sandbox: Sandbox, command: list[str]) -> None:
    sandbox.run("enable")
    assert sandbox.run(*command, BAGUA_NET_ADDRESS_PREFIX="203.0.113.0/24,127.0.0.0/8").stderr == ""
    missing = sandbox.run(*command, BAGUA_NET_ADDRESS_PREFIX="203.0.113.0/24", NCCL_SOCKET_IFNAME="lo")
    chosen_by = "NCCL_SOCKET_IFNAME=lo (environment) and BAGUA_NET_ADDRESS_PREFIX=203.0.113.0/24 (environment)"
    assert missing.stderr.startswith(f"bagua-net: {chosen_by}: no interface to use; this host has ")
    assert "lo (127.0.0.1)" in missing.stderr
    assert missing.returncode == 0, "the job may run on other machines"


@pytest.mark.gate
@pytest.mark.parametrize("command", [[], ["run"], ["status"], ["bench"], ["bench", "nccl"]])
def test_help_by_its_short_name(sandbox: Sandbox, command: list[str]) -> None:
    short = sandbox.run(*command, "-h")
    assert short.returncode == 0
    assert short.stdout == sandbox.run(*command, "--help").stdout
