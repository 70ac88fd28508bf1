# SPDX-License-Identifier: MIT
"""RCCL from Debian's package, which runs here without a GPU: its start, up to the choice of a plugin, needs none.

The package wants a newer C library than this machine may have, so it runs in that of its own release. ROCm's libraries
are replaced by ones whose functions do nothing: RCCL's start calls none that matters.

A package is downloaded once and kept where nccl_wheels.py keeps NCCL's libraries.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support import nccl_wheels

_RELEASE = "trixie"
_PACKAGES = ("librccl1", "libc6", "libstdc++6", "libgcc-s1")
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TOOLS = ("apt-get", "dpkg-deb", "cc", "nm")
_SECONDS = 300
_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")

#: The home as HOME has it: this RCCL takes that of the password database, which is not the test's.
_HOME_C = """
#include <pwd.h>
#include <stdlib.h>
struct passwd *getpwuid(uid_t uid)
{
    static struct passwd row;
    row.pw_uid = uid, row.pw_name = "test", row.pw_dir = getenv("HOME");
    return &row;
}
"""
#: A job's first call of RCCL: it reads the files, and opens the plugin.
_PROGRAM_C = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    void *rccl = dlopen(argv[argc - 1], RTLD_NOW);
    char line[4096], id[128];
    int version = 0, mapped = 0;
    FILE *maps;
    if (!rccl)
        return fprintf(stderr, "%s\\n", dlerror()), 1;
    ((int (*)(int *))dlsym(rccl, "ncclGetVersion"))(&version);
    printf("version %d\\n", version);
    printf("id %d\\n", ((int (*)(char *))dlsym(rccl, "ncclGetUniqueId"))(id));
    maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof(line), maps))
        mapped |= strstr(line, "libnccl-net-bagua.so") != NULL;
    printf("mapped %d\\n", mapped);
    return 0;
}
"""


def _run(*command: str, **options: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"{command[0]}: exit status {done.returncode}"])[-1])
    return str(done.stdout)


def _download(into: Path) -> None:
    """The packages of that release, with lists of their own: this machine's are left alone."""
    sites = _run("apt-get", "indextargets", "--format", "$(SITE)", "Identifier: Packages").split()
    debian = next((site for site in sites if site.endswith("/debian")), None)
    if debian is None or not Path(_KEYS).is_file():
        raise RuntimeError("this machine has no Debian archive to ask")
    source = into / "sources.list"
    source.write_text(f"deb [signed-by={_KEYS}] {debian} {_RELEASE} main\n")
    for name in ("lists/partial", "cache/archives/partial"):
        (into / name).mkdir(parents=True)
    settings = {
        "Dir::Etc::sourcelist": str(source),
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": str(into / "lists"),
        "Dir::State::status": "/dev/null",
        "Dir::Cache": str(into / "cache"),
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "update")
    _run("apt-get", *options, "download", *_PACKAGES, cwd=str(into))


def _unpack(packages: Path, into: Path) -> None:
    for package in sorted(packages.glob("*.deb")):
        _run("dpkg-deb", "-x", str(package), str(into))


def _compile(source: str, made: Path, *options: str) -> None:
    written = made.with_suffix(".c")
    written.write_text(source)
    _run("cc", "-w", "-o", str(made), str(written), *options)


def _stand_in(made: Path, symbols: list[tuple[str, str]]) -> None:
    """A library of these functions and versions ("" for none), which do nothing and return zero."""
    versions = sorted({version for _, version in symbols if version})
    script, earlier = [], ""
    for version in versions:
        names = " ".join(f"{name};" for name, own in symbols if own == version)
        script.append(f"{version} {{ global: {names} }}{earlier};")
        earlier = f" {version}"
    map_file = made.with_suffix(".map")
    map_file.write_text("\n".join(script))
    options = [f"-Wl,--version-script={map_file}"] if script else []
    functions = "".join(f"long {name}(void) {{ return 0; }}\n" for name, _ in symbols)
    _compile(functions, made, "-shared", "-fPIC", f"-Wl,-soname,{made.name}", *options)


def _stand_ins(libraries: Path) -> None:
    undefined = _run("nm", "-D", "--undefined-only", "--with-symbol-versions", str(libraries / "librccl.so.1"))
    symbols = re.findall(r" U (\w+)(?:@(\w+(?:\.\w+)*))?$", undefined, re.MULTILINE)
    hip = [(name, version) for name, version in symbols if version.startswith("hip_")]
    _stand_in(libraries / "libamdhip64.so.5", hip)
    _stand_in(libraries / "librocm_smi64.so.1", [(name, "") for name, _ in symbols if name.startswith("rsmi_")])


@functools.cache
def _fetch() -> Path | str:
    """The directory with everything, or the reason why it is missing. One attempt per session."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or platform.machine() != "x86_64":
        return f"RCCL's package needs {', '.join(missing) or 'an x86-64 machine'}"
    directory = nccl_wheels.directory()
    target = directory / f"rccl-{_RELEASE}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if target.is_dir():
                return target
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                downloads, made = Path(scratch, "packages"), Path(scratch, "made")
                downloads.mkdir()
                _download(downloads)
                _unpack(downloads, made)
                _stand_ins(made / _LIBRARIES)
                _compile(_HOME_C, made / "home.so", "-shared", "-fPIC")
                _compile(_PROGRAM_C, made / "program")
                made.replace(target)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        return f"RCCL's package cannot be had: {error}"
    return target


def start(home: Path, **variables: str) -> tuple[list[str], str]:
    """Starts RCCL in a process with this home and these variables. Skips the calling test where it is not available.

    Returns:
        the process's lines, "version NUMBER", "id RESULT" and "mapped 0 or 1", and RCCL's log.
    """
    found = _fetch()
    if isinstance(found, str):
        pytest.skip(found)
    libraries = found / _LIBRARIES
    search = variables.pop("LD_LIBRARY_PATH", "")
    done = subprocess.run(
        [
            str(libraries / "ld-linux-x86-64.so.2"),
            "--library-path",
            f"{libraries}:{search}",
            str(found / "program"),
            str(libraries / "librccl.so.1"),
        ],
        env={
            "HOME": str(home),
            "PATH": os.environ.get("PATH", ""),
            "LD_PRELOAD": str(found / "home.so"),
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_DEBUG": "INFO",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    own = [line for line in done.stdout.splitlines() if re.fullmatch(r"(version|id|mapped) \d+", line)]
    return own, done.stdout
