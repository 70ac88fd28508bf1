#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The kept inputs of the fuzzers, a line of hexadecimal digits each: corpus/NAME.hex has those of fuzz_NAME that
together reach what is known, corpus/NAME.faults.hex those that once were not survived, and corpus/NAME.seeds.hex those
that were written: they reach no line of their own, and a fuzzer whose library is broken does not survive them.

    tests/fuzz/corpus.py run PROGRAM            # runs the program on every kept input
    tests/fuzz/corpus.py grow PROGRAM SECONDS   # searches from there, and keeps the fewest inputs that reach as much

The status is the program's: not 0 where an input is not survived. A search that finds such an input adds it to
NAME.faults.hex, where it stays.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_KEPT = Path(__file__).resolve().with_name("corpus")
_MAX_BYTES = 512
#: An input takes a ms; a machine that has much else to do may stop for seconds.
_LIMITS = (f"-max_len={_MAX_BYTES}", "-timeout=60")


def _file(program: Path) -> Path:
    return _KEPT / f"{program.name.removeprefix('fuzz_')}.hex"


def _faults(program: Path) -> Path:
    return _file(program).with_suffix(".faults.hex")


def _seeds(program: Path) -> Path:
    return _file(program).with_suffix(".seeds.hex")


def _unpack(program: Path, directory: Path) -> int:
    directory.mkdir()
    files = [file for file in (_file(program), _faults(program), _seeds(program)) if file.is_file()]
    lines = [line for file in files for line in file.read_text().splitlines()]
    for number, line in enumerate(lines):
        (directory / str(number)).write_bytes(bytes.fromhex(line))
    return len(lines)


def _pack(directory: Path, file: Path) -> int:
    """Shorter inputs first, then in order of their bytes: a search that finds nothing new changes little."""
    inputs = sorted({path.read_bytes() for path in directory.iterdir()}, key=lambda each: (len(each), each))
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{each.hex()}\n" for each in inputs))
    return len(inputs)


def run(program: Path) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch, "kept")
        if _unpack(program, kept) == 0:
            print(f"{_file(program)}: there is no input", file=sys.stderr)
            return 2
        return subprocess.run([program, *_LIMITS, f"-artifact_prefix={scratch}/", "-runs=0", kept]).returncode


def grow(program: Path, seconds: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        kept, found, fewest, faults = (Path(scratch, name) for name in ("kept", "found", "fewest", "faults"))
        _unpack(program, kept)
        for directory in (found, fewest, faults):
            directory.mkdir()
        limits: list[str | Path] = [program, *_LIMITS, f"-artifact_prefix={faults}/"]
        search = [*limits, f"-max_total_time={seconds}", "-print_final_stats=1", found, kept]
        status = subprocess.run(search).returncode
        for fault in faults.iterdir():
            line = fault.read_bytes().hex()
            print(f"{program.name}: not survived, and added to {_faults(program).name}: {line}")
            with _faults(program).open("a") as file:
                file.write(f"{line}\n")
        merge = subprocess.run([*limits, "-set_cover_merge=1", fewest, kept, found]).returncode
        if merge == 0:
            print(f"{program.name}: {_pack(fewest, _file(program))} inputs kept")
        return status or merge


def main(arguments: list[str]) -> int:
    match arguments:
        case ["run", program]:
            return run(Path(program).resolve())
        case ["grow", program, seconds]:
            return grow(Path(program).resolve(), int(seconds))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
