# SPDX-License-Identifier: MIT
"""An NCCL for tests that need any one, files that are none, and faults in a rank of the doctor's job.

library = nccl_here.library()            # skips the test, with the reason, where there is none
stripped = nccl_here.build(tmp_path, "stripped")
variables = nccl_here.sabotaged(tmp_path, "Comm.all_reduce", nccl_here.KILLED)
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bagua_net import plugin_path
from bagua_net._nccl import discovery
from tests.support import nccl_wheels

_ROOT = Path(__file__).resolve().parents[2]
#: Of :mod:`nccl_wheels`, where no wheel is installed.
_OTHERWISE = "2.30.7"

_VERSION = "int ncclGetVersion(int *version) { *version = %d; return 0; }\n"
_CRASH = "__attribute__((constructor)) static void crash(void) { *(volatile int *)0 = 0; }\n"
_FAILING = """
#include <dlfcn.h>
#include "common/abi.h"
__attribute__((visibility("default"))) ncclNet_v8_t ncclNetPlugin_v8;
static ncclResult_t fail(void *comm, void *data, int size, int tag, void *handle, void **request)
{
	return ncclSystemError;
}
__attribute__((constructor)) static void load(void)
{
	ncclNetPlugin_v8 = *(ncclNet_v8_t *)dlsym(dlopen("%s", RTLD_NOW | RTLD_LOCAL), "ncclNetPlugin_v8");
	ncclNetPlugin_v8.isend = fail;
}
"""
_SOURCES = {
    "stripped": _VERSION % 23007,
    "old": _VERSION % 21000,
    "another": "int other;\n",
    "crashing": _CRASH,
    "failing": _FAILING % plugin_path(),
}

# Every Python process that finds this module imports it: in rank 1 of the job, one function does something else.
_SABOTAGE = """
import os, signal, sys
if sys.orig_argv[2:4] == ["bagua_net._doctor.nccl_job", "1"]:
    from bagua_net._nccl import emulated
    def fault(*arguments):
        {fault}
    original = emulated.{function}
    emulated.{function} = fault
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@functools.cache
def _installed() -> Path | None:
    """The library of the nvidia-nccl wheel of this Python."""
    found = discovery.find(
        (directory / "libnccl.so.2", "wheel") for directory in discovery._directories_of("nvidia.nccl")
    )
    return found.path if found is not None else None


def library() -> Path:
    """That of the installed wheel, or one of another release."""
    return _installed() or nccl_wheels.library(_OTHERWISE)


def build(directory: Path, name: str) -> Path:
    """A library that is no NCCL: "stripped", "old", "another" or "crashing" when it is loaded; and "failing", a network
    plugin that cannot send."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, made = directory / f"{name}.c", directory / f"{name}.so"
    source.write_text(_SOURCES[name])
    options = ["-shared", "-fPIC", f"-I{_ROOT}", *(["-s"] if name == "stripped" else [])]
    subprocess.run([compiler, *options, "-o", str(made), str(source)], check=True, timeout=60)
    return made


def sabotaged(directory: Path, function: str, fault: str) -> dict[str, str]:
    """Variables of a job whose rank 1 does something else in a function of ``bagua_net._nccl.emulated``.

    Args:
        directory: keeps it while the job runs.
        fault: a line of Python, which may call ``original(*arguments)``.
    """
    (directory / "sitecustomize.py").write_text(_SABOTAGE.format(function=function, fault=fault))
    return {"PYTHONPATH": os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])}
