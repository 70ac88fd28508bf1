# SPDX-License-Identifier: MIT
"""torch imports this package wherever it is installed. That must cost nothing and must never fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest
import torch

import bagua_net
from bagua_net._native import plugin
from tests.support import ranks as harness
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_ROOT = Path(__file__).resolve().parents[2]
_IN_IMPORT, _ON_REQUEST = "torch.backends", "torch.distributed.backends"
_SECONDS = 100

#: torch >= 2.14 looks a backend that it does not know up among the entry points.
on_request = pytest.mark.skipif(
    not hasattr(torch.distributed.Backend, "_ensure_backend_registered"),
    reason="torch looks for backends on request from 2.14 on",
)
not_on_request = pytest.mark.skipif(
    hasattr(torch.distributed.Backend, "_ensure_backend_registered"),
    reason="torch looks for backends on request from 2.14 on",
)


def _published() -> str:
    """The entry points of pyproject.toml, in the form that an installer writes."""
    text, groups = (_ROOT / "pyproject.toml").read_text(), []
    for group, target in re.findall(r'^\[project\.entry-points\."(.*)"\]\nbagua_net = "(.*)"$', text, re.MULTILINE):
        groups.append(f"[{group}]\nbagua_net = {target}\n")
    return "\n".join(groups)


def _installed(directory: Path) -> Path:
    """A directory with a package's metadata, where torch finds the entry points."""
    about = directory / "bagua_net_as_installed-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bagua_net_as_installed\nVersion: 1\n")
    (about / "entry_points.txt").write_text(_published())
    return directory


def _python(code: str, path: Path, settings: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    variables = harness.environment(settings)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), variables.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=_SECONDS, cwd=path
    )


def _package_without_library(directory: Path) -> Path:
    """The package as on a machine where the library was never built."""
    package = Path(bagua_net.__file__).parent
    shutil.copytree(package, directory / "bagua_net", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    return _installed(directory)


_MEET = """
import torch, torch.distributed as dist
print("imported", *dist.Backend.backend_list)
dist.init_process_group("bagua_net", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print("worked", tensor.tolist())
dist.destroy_process_group()
"""


def test_the_package_has_both_entry_points(tmp_path: Path) -> None:
    (found,) = metadata.distributions(name="bagua_net_as_installed", path=[str(_installed(tmp_path))])
    assert {(point.group, point.name): point.value for point in found.entry_points} == {
        (_IN_IMPORT, "bagua_net"): "bagua_net_autoload:autoload",
        (_ON_REQUEST, "bagua_net"): "bagua_net_autoload:register",
    }


@pytest.mark.quick
def test_torch_registers_the_backend_by_itself(tmp_path: Path) -> None:
    done = _python(_MEET, _installed(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^imported .*\bbagua_net\b", done.stdout)
    assert "worked [1.0, 1.0, 1.0]" in done.stdout


def test_importing_torch_loads_nothing_of_ours_but_the_name(tmp_path: Path) -> None:
    code = "import sys, torch; print(*(n for n in ('cffi', 'typer', 'rich', 'bagua_net.torch') if n in sys.modules))"
    done = _python(code, _installed(tmp_path))
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.mark.nightly
def test_by_hand(tmp_path: Path) -> None:
    """Where torch loads no extensions, an import registers the backend; registering again changes nothing."""
    code = _MEET.replace("import torch, ", "import bagua_net.torch as backend; backend.register(); import torch, ")
    done = _python(code, _installed(tmp_path), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert "worked [1.0, 1.0, 1.0]" in done.stdout, done.stderr


@pytest.mark.parametrize("version", variants("2.99.0", nightly=["2.13.1+cpu", "2.1.0"]))
def test_a_torch_that_it_was_not_tried_with_is_named(version: str, tmp_path: Path) -> None:
    """Logged once, and the group is still made."""
    begin = f"import torch; torch.__version__ = {version!r}"
    done = _python(begin + _MEET + _MEET.replace("import torch, ", "import "), _installed(tmp_path))
    assert done.stdout.count("worked") == 2, done.stderr
    said = done.stderr.count(f"the bagua_net backend was tried with torch 2.11 to 2.15, and this is {version}")
    assert said == (0 if version.startswith("2.13.") else 1), done.stderr


@pytest.mark.nightly
def test_a_name_that_is_no_parameter_is_pointed_out(tmp_path: Path) -> None:
    """Logged once, and the group is still made."""
    done = _python(_MEET + _MEET.replace("import torch, ", "import "), _installed(tmp_path), {"BAGUA_NET_NSTREAM": "3"})
    assert done.stdout.count("worked") == 2, done.stderr
    assert done.stderr.count("BAGUA_NET_NSTREAM is not a parameter; did you mean BAGUA_NET_NSTREAMS?") == 1, done.stderr


@pytest.mark.nightly
@not_on_request
def test_without_extensions_the_name_is_unknown(tmp_path: Path) -> None:
    """Shows that the test above depends on the import."""
    done = _python(_MEET, _installed(tmp_path), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert "worked" not in done.stdout
    assert done.returncode != 0


_ON_REQUEST_BY_HAND = """
import torch, torch.distributed as dist
from importlib import metadata
assert "bagua_net" not in dist.Backend.backend_list
(point,) = metadata.distribution("bagua_net_as_installed").entry_points.select(group="torch.distributed.backends")
registrar = point.load()
assert "bagua_net" not in dist.Backend.backend_list, "torch 2.14 calls what it loads"
registrar()
assert "BAGUA_NET" in dist.Backend._plugins, "torch 2.14 looks here after the call"
assert dist.Backend.backend_capability["bagua_net"] == ["cpu"]
"""


def test_what_torch_calls_on_request_registers(tmp_path: Path) -> None:
    """The contract of torch >= 2.14: load the entry point, call the result without arguments, find the name."""
    done = _python(_ON_REQUEST_BY_HAND + _MEET, _installed(tmp_path), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert "worked [1.0, 1.0, 1.0]" in done.stdout, done.stderr


@on_request
def test_torch_registers_the_backend_on_request(tmp_path: Path) -> None:
    done = _python(_MEET, _installed(tmp_path), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert not re.search(r"^imported .*\bbagua_net\b", done.stdout)
    assert "worked [1.0, 1.0, 1.0]" in done.stdout, done.stderr


_CANNOT_REGISTER = """
import logging, torch, torch.distributed as dist
logging.basicConfig(level="DEBUG")
def fail(*_, **__): raise ImportError("no such thing")
dist.Backend.register_backend = fail
import bagua_net_autoload
bagua_net_autoload.autoload()
print("worked")
try: bagua_net_autoload.register()
except ImportError as error: print(error)
"""


@pytest.mark.gate
def test_what_torch_calls_on_request_raises(tmp_path: Path) -> None:
    """Nothing catches the reason: otherwise torch could only say that the entry point registered nothing. What runs in
    an import of torch raises nothing, and logs it."""
    done = _python(_CANNOT_REGISTER, tmp_path, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.stdout == "worked\nno such thing\n", done.stderr
    assert re.search("^DEBUG:bagua_net.torch:.*no such thing$", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.nightly
def test_autoload_without_torch_distributed(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "sys.modules['torch.distributed'] = None\n"
        "import bagua_net_autoload as backend\n"
        "backend.autoload()\n"
        "try: backend.register()\n"
        "except ImportError: print('raised by hand only')\n"
    )
    done = _python(code, tmp_path, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.stdout == "raised by hand only\n", done.stderr


#: Its hook finds the package before any path does.
not_editable = pytest.mark.skipif(
    any("editable" in type(finder).__module__ for finder in sys.meta_path),
    reason="bagua_net is installed editable",
)


@pytest.mark.nightly
@not_editable
@pytest.mark.parametrize("text", variants("raise RuntimeError('of another kind')", nightly=[""]))
def test_another_package_of_that_name_is_no_obstacle_to_torch(text: str, tmp_path: Path) -> None:
    """For example an old clone, first on the path: torch works without the backend."""
    other = _installed(tmp_path) / "bagua_net" / "__init__.py"
    other.parent.mkdir()
    other.write_text(text)
    code = "import torch, torch.distributed as dist; print('imported', *dist.Backend.backend_list)"
    done = _python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("imported")
    assert "bagua_net" not in done.stdout


@not_editable
def test_a_missing_library_is_no_obstacle_to_torch(tmp_path: Path) -> None:
    """``import torch`` works; using the backend fails with one line that says what to do."""
    path = _package_without_library(tmp_path)
    done = _python(_MEET, path)
    assert re.search(r"^imported .*\bbagua_net\b", done.stdout), done.stderr
    assert "worked" not in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert re.fullmatch(r"bagua_net\._errors\.LibraryNotFound: \S+lib[\w-]+\.so does not exist; .*build.*", last)


@not_editable
def test_a_library_that_does_not_load_is_no_obstacle_to_torch(tmp_path: Path) -> None:
    path = _package_without_library(tmp_path)
    directory = path / "bagua_net" / "lib"
    directory.mkdir()
    for library, header in (
        (plugin.plugin_path(), plugin.header_path()),
        (plugin.host_path(), plugin.host_header_path()),
    ):
        (directory / library.name).write_text("no library\n")
        shutil.copy(header, directory)
    done = _python(_MEET, path)
    assert re.search(r"^imported .*\bbagua_net\b", done.stdout), done.stderr
    assert re.search(r"^bagua_net\._errors\.LibraryUnusable: \S+ does not load: ", done.stderr, re.MULTILINE)


def test_a_missing_dependency_is_no_obstacle_to_torch(tmp_path: Path) -> None:
    path = _installed(tmp_path)
    (path / "sitecustomize.py").write_text("import sys\nsys.modules['cffi'] = None\n")
    done = _python(_MEET, path)
    assert re.search(r"^imported .*\bbagua_net\b", done.stdout), done.stderr
    assert "cffi" in done.stderr.strip().splitlines()[-1]


def test_no_interface_to_listen_on(tmp_path: Path) -> None:
    """A network error has torch's type, and names the group and the interface."""
    done = _python(_MEET, _installed(tmp_path), {"NCCL_SOCKET_IFNAME": "=none0"})
    last = done.stderr.strip().splitlines()[-1]
    assert re.match(r"torch\.distributed\.DistBackendError: bagua_net, group", last), done.stderr


_BESIDE = """
import torch, torch.distributed as dist
assert "bagua_net" in dist.Backend.backend_list
dist.init_process_group("{backend}", store=dist.HashStore(), rank=0, world_size=1)
tensor, gathered = torch.ones(3, requires_grad=True), [None]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
model(tensor).sum().backward()
dist.all_gather_object(gathered, "object")
dist.monitored_barrier() if "{backend}" == "gloo" else dist.barrier()
group = dist.new_group()
dist.all_reduce(tensor.detach(), group=group, async_op=True).wait()
dist.destroy_process_group()
print("worked", gathered)
"""


@pytest.mark.gate
@pytest.mark.parametrize("backend", variants("gloo", nightly=["cpu:gloo", "cpu:gloo,cuda:gloo"]))
def test_other_backends_work_beside_it(backend: str, tmp_path: Path) -> None:
    """torch makes groups differently where backends that it does not know are registered."""
    done = _python(_BESIDE.format(backend=backend), _installed(tmp_path))
    assert done.stdout == "worked ['object']\n", done.stderr
