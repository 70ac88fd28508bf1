# SPDX-License-Identifier: MIT
"""The public headers in a program of another language."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import bagua_net
from bagua_net._native import plugin

pytestmark = pytest.mark.gate

PROGRAM = """
#include <cstdio>
#include "bagua_net.h"
#include "bagua_net_host.h"

int main()
{
    std::printf("%s", bnet_version());
    return bnet_abi_version() > 0 && bnet_host_abi_version() > 0 ? 0 : 1;
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler is installed")
def test_a_program_in_cxx_links_with_the_libraries(tmp_path: Path) -> None:
    library, host = bagua_net.plugin_path(), plugin.host_path()
    source, program = tmp_path / "user.cc", tmp_path / "user"
    source.write_text(PROGRAM)
    command = [
        "c++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{library.parent}",
        str(source),
        str(library),
        str(host),
    ]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", str(program)], check=True, timeout=60)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == bagua_net.__version__
