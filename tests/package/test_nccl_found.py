# SPDX-License-Identifier: MIT
"""Which NCCL `bench` and `doctor --nccl` take: that of the variable, or those that a job could load."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bagua_net._nccl import discovery
from tests.package import bench_command

NAME = "libnccl.so.2"


def _file(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / NAME).touch()
    return directory / NAME


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """A library in each place but the linker's cache, which is empty: PATH has another ldconfig."""
    found = {name: _file(tmp_path / name) for name in ("site/nvidia/nccl/lib", "first", "second", "mine")}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ldconfig").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "ldconfig").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.delenv(discovery.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(discovery, "mapped_in_process", lambda: None)  # an earlier test may have loaded one
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)  # a namespace keeps where it was found
    yield found
    sys.modules.pop("nvidia", None)


def test_that_of_the_variable_alone(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(discovery.LIBRARY_VARIABLE, str(places["mine"]))
    assert discovery.libraries() == [places["mine"]]
    assert discovery.libraries(str(places["first"])) == [places["first"]], "an option wins"


def test_the_wheel_s_then_those_of_the_path_then_the_system_s_each_once(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "again" / NAME
    again.parent.mkdir()
    again.symlink_to(places["first"])
    system = _file(tmp_path / "system")
    listed = f"{NAME} (libc6,x86-64) => {system}\n\tlibnccl-net.so (libc6,x86-64) => /nowhere/libnccl-net.so\n"
    (tmp_path / "bin" / "ldconfig").write_text(f"#!/bin/sh\necho '\t{listed}'\n")
    (tmp_path / "bin" / "ldconfig").chmod(0o755)
    monkeypatch.setenv(
        "LD_LIBRARY_PATH", ":".join(str(path.parent) for path in (places["first"], places["second"], again))
    )
    assert discovery.libraries() == [places["site/nvidia/nccl/lib"], places["first"], places["second"], system]


def test_what_is_not_there_is_said(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_candidates", list)
    with pytest.raises(
        discovery.NcclNotFound, match=r"^no NCCL is installed here; .*BAGUA_NET_BENCH_LIBNCCL$"
    ) as missing:
        discovery.libraries()
    (command,) = re.findall(r"pip install [^,]+", str(missing.value))
    assert f"\npython3 -m {command}\n" in (Path(__file__).parents[2] / "README.md").read_text()
    monkeypatch.setenv(discovery.LIBRARY_VARIABLE, "/nowhere/libnccl.so.2")
    with pytest.raises(discovery.NcclNotFound, match=r"BAGUA_NET_BENCH_LIBNCCL=/nowhere/libnccl\.so\.2: no such file"):
        discovery.libraries()


def test_bench_takes_one_on_the_library_path(tmp_path: Path) -> None:
    """A package of that name, without a library, hides an installed one. The file is none, and the run says so."""
    library = _file(tmp_path / "system")
    library.write_text("not a library, but longer than an ELF header is: " + "x" * 100)
    for package in (tmp_path / "nvidia", tmp_path / "nvidia" / "nccl"):
        package.mkdir()
        (package / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), bench_command.environment()["PYTHONPATH"]])
    options = ["--transport", "nccl-socket", "--max", "4", *bench_command.QUICK]
    run = bench_command.bench(*options, LD_LIBRARY_PATH=str(library.parent), PYTHONPATH=path)
    assert run.returncode == 1
    assert f"nccl-socket cannot be measured: {library} is not a 64-bit" in run.stderr
