#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The kept inputs of the fuzzers: corpus/NAME.hex has a line of hexadecimal digits for each input of fuzz_NAME.

    tests/fuzz/corpus.py run PROGRAM            # runs the program on every kept input
    tests/fuzz/corpus.py grow PROGRAM SECONDS   # searches from there, and keeps the fewest inputs that reach as much

The status is the program's: not 0 where an input is not survived. Such an input is left as crash-* in the working
directory; once the fault is mended, its line is added by hand.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_KEPT = Path(__file__).resolve().with_name("corpus")
_MAX_BYTES = 512
_LIMITS = (f"-max_len={_MAX_BYTES}", "-timeout=5")


def _file(program: Path) -> Path:
    return _KEPT / f"{program.name.removeprefix('fuzz_')}.hex"


def _unpack(file: Path, directory: Path) -> None:
    directory.mkdir()
    for number, line in enumerate(file.read_text().splitlines() if file.is_file() else ()):
        (directory / str(number)).write_bytes(bytes.fromhex(line))


def _pack(directory: Path, file: Path) -> int:
    """Shorter inputs first, then in order of their bytes: a search that finds nothing new changes little."""
    inputs = sorted({path.read_bytes() for path in directory.iterdir()}, key=lambda each: (len(each), each))
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{each.hex()}\n" for each in inputs))
    return len(inputs)


def run(program: Path) -> int:
    file = _file(program)
    if not file.is_file():
        print(f"{file}: there is no such file", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch, "kept")
        _unpack(file, kept)
        return subprocess.run([program, *_LIMITS, "-runs=0", kept]).returncode


def grow(program: Path, seconds: int) -> int:
    file = _file(program)
    with tempfile.TemporaryDirectory() as scratch:
        kept, found, fewest = (Path(scratch, name) for name in ("kept", "found", "fewest"))
        _unpack(file, kept)
        found.mkdir()
        fewest.mkdir()
        search: list[str | Path] = [program, *_LIMITS, f"-max_total_time={seconds}", "-print_final_stats=1"]
        status = subprocess.run([*search, found, kept]).returncode
        if status == 0:
            status = subprocess.run([program, *_LIMITS, "-set_cover_merge=1", fewest, kept, found]).returncode
        if status == 0:
            print(f"{program.name}: {_pack(fewest, file)} inputs kept")
        return status


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
