# SPDX-License-Identifier: MIT
"""The marked block: inserted and removed without a trace, at the top of the file, where NCCL obeys it."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bagua_net import ConfFileDamaged, ConflictingSetting
from bagua_net._activation import conf_block, switch
from bagua_net._settings import conf

SETTINGS = {"NCCL_NET_PLUGIN": "/opt/lib/libnccl-net-bagua.so", "NCCL_NET": "BaguaNet"}
OTHERS = {"NCCL_NET_PLUGIN": "/srv/libnccl-net-bagua.so", "NCCL_NET": "BaguaNet"}
BEGIN, END = b"# >>> bagua-net >>>", b"# <<< bagua-net <<<"

# Arbitrary bytes, and text similar to a block: its own markers, other lines, both kinds of line end, or none.
fragments = st.sampled_from(
    [
        END,
        END + b"\n",
        b"\n",
        b"\r\n",
        b"\r",
        b"#",
        b"NCCL_NET=Socket",
        b"NCCL_DEBUG=INFO\n",
        b" " + BEGIN,
        b"\xff\xfe",
        b"=",
    ]
)
contents = st.binary() | st.lists(fragments | st.binary(max_size=8)).map(b"".join)


def begins_a_block(content: bytes) -> bool:
    return any(line.startswith(BEGIN) for line in content.split(b"\n"))


@given(contents)
@example(b"")
@example(END)
@example(b"A=1\r\nB=2")
def test_taking_the_block_out_gives_the_file_back(content: bytes) -> None:
    assume(not begins_a_block(content))
    assert conf_block.without_block(conf_block.with_block(content, SETTINGS)) == content


@given(contents | st.none())
def test_twice_is_once(content: bytes | None) -> None:
    assume(content is None or not begins_a_block(content))
    once = conf_block.with_block(content, SETTINGS)
    assert conf_block.with_block(once, SETTINGS) == once
    assert conf_block.with_block(conf_block.with_block(content, OTHERS), SETTINGS) == once


@given(contents)
def test_the_block_wins_over_what_follows(content: bytes) -> None:
    assume(not begins_a_block(content))
    found = conf.parse(conf_block.with_block(content, SETTINGS))
    assert {name: found[name] for name in SETTINGS} == SETTINGS


@given(contents)
def test_taking_out_what_is_not_there_changes_nothing(content: bytes) -> None:
    assume(not begins_a_block(content))
    assert conf_block.without_block(content) == content


def test_a_file_that_was_made_for_the_block_goes_with_it() -> None:
    made = conf_block.with_block(None, SETTINGS)
    assert conf_block.without_block(made) is None
    assert conf_block.without_block(conf_block.with_block(made, SETTINGS)) is None


def test_a_file_that_was_empty_stays() -> None:
    assert conf_block.without_block(conf_block.with_block(b"", SETTINGS)) == b""


@pytest.mark.parametrize("position", ["before", "behind", "both"])
def test_what_is_added_later_stays(position: str) -> None:
    made = conf_block.with_block(None, SETTINGS)
    before = b"NCCL_DEBUG=WARN\n" if position != "behind" else b""
    behind = b"NCCL_IB_DISABLE=1" if position != "before" else b""
    assert conf_block.without_block(before + made + behind) == before + behind


@pytest.mark.parametrize("change", [lambda made: made.replace(b"\n", b"\r\n"), lambda made: made.removesuffix(b"\n")])
def test_an_editor_may_change_the_line_ends(change: Callable[[bytes], bytes]) -> None:
    assert conf_block.without_block(b"A=1\n" + change(conf_block.with_block(b"", SETTINGS))) == b"A=1\n"


def test_no_marker_is_a_setting_to_an_nccl_that_knows_no_comments() -> None:
    lines = conf_block.with_block(None, SETTINGS).splitlines()
    assert [line for line in lines if b"=" in line] == [f"{name}={value}".encode() for name, value in SETTINGS.items()]


def test_a_block_without_an_end_is_left_to_a_person() -> None:
    content = b"A=1\n" + BEGIN + b"\nNCCL_NET=BaguaNet\n"
    for change in (conf_block.without_block, lambda damaged: conf_block.with_block(damaged, SETTINGS)):
        with pytest.raises(ConfFileDamaged, match=r"line 2 .* remove the block by hand"):
            change(content)


def test_a_setting_of_others_is_a_conflict_and_an_equal_one_is_none() -> None:
    path = Path("/etc/nccl.conf")
    with pytest.raises(ConflictingSetting, match=r"/etc/nccl\.conf has NCCL_NET=Socket"):
        conf_block.check_conflict(path, b"NCCL_NET=Socket\n", SETTINGS)
    conf_block.check_conflict(path, b"NCCL_NET=BaguaNet\n#NCCL_NET=IB\n", SETTINGS)
    conf_block.check_conflict(path, conf_block.with_block(b"", OTHERS), SETTINGS)
    conf_block.check_conflict(path, None, SETTINGS)


def test_parse_reads_as_nccl_does() -> None:
    content = b"A=1\nA=2\n#B=3\n B = 4 \nno setting\nC=\r\nD=x=y\nE=1\0 2\n\0F=3"
    assert conf.parse(content) == {"A": "1", " B ": " 4 ", "C": "", "D": "x=y", "E": "1"}


def test_writing_keeps_the_mode_the_owner_and_the_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.conf", tmp_path / "link.conf"
    target.write_bytes(b"A=1\n")
    target.chmod(0o640)
    owner = (os.getuid(), os.getgid())
    if os.getuid() == 0:
        owner = (12345, 12346)
        os.chown(target, *owner)
    link.symlink_to("real.conf")
    conf_block.write(link, b"A=2\n")
    after = target.stat()
    assert link.is_symlink()
    assert target.read_bytes() == b"A=2\n"
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == owner
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.conf", "real.conf"]


def test_a_group_that_a_container_has_no_number_for(tmp_path: Path) -> None:
    inside = ["unshare", "--user", "--map-root-user", sys.executable, "-c"]
    if os.getuid() != 0 or subprocess.run([*inside, ""], capture_output=True).returncode:
        pytest.skip("no namespaces of users here")
    target = tmp_path / "nccl.conf"
    target.write_bytes(b"A=1\n")
    os.chown(target, -1, 12346)
    code = (
        "import pathlib, sys; from bagua_net._activation import conf_block\n"
        "conf_block.write(pathlib.Path(sys.argv[1]), b'A=2\\n')"
    )
    subprocess.run([*inside, code, str(target)], check=True, timeout=60)
    assert target.read_bytes() == b"A=2\n"


def test_a_new_file_can_be_read_by_everybody(tmp_path: Path) -> None:
    conf_block.write(tmp_path / "new.conf", b"A=1\n")
    assert stat.S_IMODE((tmp_path / "new.conf").stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_the_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "nccl.conf"
    target.write_bytes(b"A=1\n")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        conf_block.write(target, b"A=2\n")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"nccl.conf": b"A=1\n"}


def test_all_files_are_written_or_none(tmp_path: Path) -> None:
    written, missing = tmp_path / "written.conf", tmp_path / "missing" / "x.conf"
    written.write_bytes(b"X=1\n")
    target = switch.Target(((written, tmp_path / "copy"), (missing, tmp_path / "copy")))
    changes = [switch.Change(written, b"X=1\n", b"Y=1\n"), switch.Change(missing, None, b"Y=1\n")]
    with pytest.raises(FileNotFoundError, match=re.escape(f"'{missing}'")):
        switch.enable(target, changes)
    assert written.read_bytes() == b"X=1\n"
    assert sorted(tmp_path.iterdir()) == [written]
