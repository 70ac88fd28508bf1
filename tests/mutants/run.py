# SPDX-License-Identifier: MIT
"""Applies each mutant of the list to a copy of the tree, and sees whether its tests fail.

    python3 -m tests.mutants.run                 # all
    python3 -m tests.mutants.run quota marks     # those whose names contain a word
    python3 -m tests.mutants.run --tier gate  # without the tests that run only at night
    python3 -m tests.mutants.run --jobs 2     # two at a time, each with a copy and a build of its own
    python3 -m tests.mutants.run --list

Prints one line for each mutant: "red" if all its tests fail, "SURVIVED" if one stays green. The tests are run on the
unchanged copy first. The status is 1 if a mutant survives that the list does not explain, and 2 if nothing can be said,
since a test fails without a mutant, the list does not fit the code, or a mutant does not compile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.mutants import ROOT, BadList, Mutant, Test, read_all

_CONTRACT = "contract:"
#: Target: its folder, and its header there.
_LIBRARIES = {
    "nccl-net-bagua": ("plugin", "bagua_net.h"),
    "bagua-net-host": ("host", "bagua_net_host.h"),
    "bagua-net-emulator": ("emulator", "bagua_net_emulator.h"),
}
#: Statuses of pytest: interrupted, such as by errors while it collected; an error of its own; wrong usage.
_NOT_RUN = (2, 3, 4)
_NO_TESTS = 5
#: A test hangs in a mutant if it takes so much longer than many times what it takes without.
_TEST_SECONDS = 10
_HANGS = "hangs"
_TIMES = 3
_FIRST_SECONDS = 300
_BUILD_SECONDS = 900
#: How lines begin that say what the list says.
_AS_LISTED = ("red ", "known ", "night ")


class Unusable(Exception):
    """Nothing can be said. The message says why."""


class Skipped(Unusable):
    """A test cannot run here."""


class Scratch:
    """A copy of the tree, with one build directory. The Python tests build into the same one."""

    def __init__(self, root: Path, limits: dict[Test, float]) -> None:
        self.root = root
        self.build_directory = root / "build-tests-plain"
        self.limits = limits

    def copy(self) -> None:
        """Makes the copy the same as the tree, but for the build directory. Unchanged files are not touched."""
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        wanted = {name for name in names.stdout.split("\0") if name and (ROOT / name).is_file()}
        for path in list(self.root.rglob("*")):
            inside = self.build_directory in path.parents
            if path.is_file() and not inside and str(path.relative_to(self.root)) not in wanted:
                path.unlink()
        for name in sorted(wanted):
            source, target = ROOT / name, self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.is_file() or target.read_bytes() != source.read_bytes():
                shutil.copyfile(source, target)
                shutil.copymode(source, target)

    def use_package(self) -> None:
        """The Python tests import the copy's package, with the libraries that are built here.

        Raises:
            Unusable: they would import another one.
        """
        directory = self.root / "python" / "bagua_net" / "lib"
        directory.mkdir(exist_ok=True)
        for name, (folder, header) in _LIBRARIES.items():
            for file in (self.build_directory / folder / f"lib{name}.so", self.root / folder / header):
                link = directory / file.name
                link.unlink(missing_ok=True)
                link.symlink_to(file)
        show = [sys.executable, "-c", "import bagua_net; print(bagua_net.__file__)"]
        done = subprocess.run(
            show, cwd=self.root, env=self._environment(Test("", "gate")), capture_output=True, text=True
        )
        if not done.stdout.startswith(f"{self.root}/"):
            raise Unusable(
                f"tests would import {done.stdout.strip() or 'no bagua_net'}, and not the copy with the mutant: an "
                "editable installation comes before PYTHONPATH; use an environment with `pip install .`"
            )

    def configure(self) -> None:
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSKBUILD=ON", "-DSKBUILD_STATE=wheel", "-DBNET_TESTS=ON"]
        command = ["cmake", "-S", str(self.root), "-B", str(self.build_directory), *generator, *options]
        # Warnings, such as of what is unused in a mutant, are no errors here.
        self._must(command, "the tree cannot be configured")

    def build(self, targets: set[str]) -> None:
        if not targets:
            return
        command = ["cmake", "--build", str(self.build_directory), "--parallel", "2", "--target", *sorted(targets)]
        self._must(command, "the build fails")

    def _must(self, command: list[str], what: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS)
        if done.returncode != 0:
            raise Unusable(f"{what}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")

    def _command(self, test: Test) -> list[str]:
        if test.name.startswith(_CONTRACT):
            scenario = test.name.removeprefix(_CONTRACT).split()[0]
            library = self.build_directory / "plugin" / "libnccl-net-bagua.so"
            driver = self.build_directory / "tests" / "conformance" / "drive_contract"
            return [str(driver), "--lib", str(library), "--deadline", str(_FIRST_SECONDS), scenario]
        if "::" in test.name:
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
            return [*command, "--tier", test.tier, test.name]
        return [str(self.build_directory / "tests" / "unit" / test.name)]

    def _environment(self, test: Test) -> dict[str, str]:
        """This process's, with no NCCL_* and BAGUA_NET_* but the test's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "BAGUA_NET_"))}
        loopback = {"NCCL_SOCKET_IFNAME": "lo"} if test.name.startswith(_CONTRACT) else {}
        settings = dict(setting.split("=", 1) for setting in test.name.split()[1:])
        own = {"PYTHONPATH": str(self.root / "python"), "BNET_TEST_TIER": test.tier}
        return kept | loopback | settings | own

    def run(self, test: Test) -> str:
        """Runs a test. "" if it passes; else what happened, in a few words. Skipped if it cannot run here."""
        limit = self.limits.get(test, _FIRST_SECONDS)
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                self._command(test),
                cwd=self.root,
                env=self._environment(test),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                return f"{_HANGS} for {limit:.0f} s"
            finally:
                _end_group(process)
            output.seek(0)
            lines = [line.strip().replace(f"{self.root}/", "") for line in output if line.strip()]
        if status == _NO_TESTS and "::" in test.name:
            raise Skipped(f"{test.name} does not run in the gate: `nightly` instead of `red` says so")
        if status in _NOT_RUN and any("found no collectors" in line for line in lines):
            raise Skipped(f"{test} is skipped here, with its file")
        if status in _NOT_RUN and "::" in test.name:
            raise Unusable(f"{test.name} could not be run: {lines[-1] if lines else ''}")
        if status == 77 or (status == 0 and "::" in test.name and " passed" not in lines[-1]):
            raise Skipped(f"{test} is skipped here")
        if status == 0:
            self.limits.setdefault(test, _TEST_SECONDS + _TIMES * (time.monotonic() - began))
            return ""
        found = [line for line in lines if "failed:" in line or "FAILED" in line or "expected" in line]
        return (found or lines or [f"status {status}"])[0][-160:]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends what the test may have left, such as the peer of a driver that hangs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _targets(tests: list[Test]) -> set[str]:
    targets: set[str] = set()
    for test in (each.name for each in tests):
        if test.startswith(_CONTRACT):
            targets |= {"nccl-net-bagua", "drive_contract"}
        elif "::" in test:
            targets |= {*_LIBRARIES, "drive_net", "drive_steps", "drive_contract"}
        else:
            targets.add(test)
    return targets


class Scratches:
    """Copies of the tree, one for each mutant that is judged at the same time."""

    def __init__(self, root: Path, jobs: int) -> None:
        limits: dict[Test, float] = {}  # seconds, of the tests that have passed
        self.all = [Scratch(root / str(number), limits) for number in range(jobs)]
        self._free: queue.SimpleQueue[Scratch] = queue.SimpleQueue()
        for scratch in self.all:
            scratch.root.mkdir(parents=True, exist_ok=True)
            self._free.put(scratch)

    @contextlib.contextmanager
    def one(self) -> Iterator[Scratch]:
        """One that nobody else uses meanwhile."""
        scratch = self._free.get()
        try:
            yield scratch
        finally:
            self._free.put(scratch)


def _prepare(scratch: Scratch, tests: list[Test]) -> None:
    scratch.copy()
    scratch.configure()
    if any("::" in test.name for test in tests):
        scratch.use_package()
    scratch.build(_targets(tests))


def _fails_unchanged(scratches: Scratches, test: Test) -> str:
    """How it fails without a mutant, twice: once it may have been the machine. "": it passes, or is skipped."""
    with scratches.one() as scratch, contextlib.suppress(Skipped):
        return scratch.run(test) and scratch.run(test)
    return ""


def _judge(scratch: Scratch, mutant: Mutant, tests: list[Test]) -> tuple[list[str], list[str]]:
    """Runs these of the mutant's tests. Returns the red ones, each with what it said, and the green ones."""
    changed = mutant.files(scratch.root)
    before = {path: path.read_text() for path in changed}
    red, green = [], []
    try:
        for path, text in changed.items():
            path.write_text(text)
        scratch.build(_targets(tests))
        for test in tests:
            failure = scratch.run(test)
            if failure.startswith(_HANGS):  # it may have been the machine
                failure = scratch.run(test)
            if failure:
                red.append(f"{test}: {failure}")
            else:
                green.append(str(test))
    finally:
        for path, text in before.items():
            path.write_text(text)
    return red, green


def _verdict(mutant: Mutant, red: list[str], green: list[str]) -> str:
    if mutant.survives:
        if red:
            return f"KNOWN     {mutant.name}: listed as a survivor, but red: {'; '.join(red)}"
        return f"known     {mutant.name}: {mutant.survives}"
    if green:
        return f"SURVIVED  {mutant.name} ({mutant.breaks}): {', '.join(green)} stayed green"
    return f"red       {mutant.name}: {'; '.join(red)}"


def _judged(scratches: Scratches, mutant: Mutant, tier: str, failing: dict[Test, str]) -> str:
    """The mutant's line, which begins with a word of _AS_LISTED where the list is right. ``failing``: tests that fail
    without a mutant, and how."""
    tests = mutant.tests(tier)
    for test in tests:
        if failing.get(test):
            return f"UNUSABLE  {mutant.name}: {test} fails without a mutant: {failing[test]}"
    if not tests and not mutant.survives:
        return f"night     {mutant.name}: red only at night"
    try:
        with scratches.one() as scratch:
            return _verdict(mutant, *_judge(scratch, mutant, tests))
    except Unusable as error:
        return f"UNUSABLE  {mutant.name}: {error}"


def _run_all(scratches: Scratches, mutants: list[Mutant], tier: str) -> int:
    began = time.monotonic()
    tests = sorted({test for mutant in mutants for test in mutant.tests(tier)})
    for mutant in mutants:
        mutant.files(ROOT)  # so that a list that does not fit ends the run at once
    with ThreadPoolExecutor(len(scratches.all)) as workers:
        list(workers.map(lambda scratch: _prepare(scratch, tests), scratches.all))
        failures = list(workers.map(lambda test: _fails_unchanged(scratches, test), tests))
        failing = {test: failure for test, failure in zip(tests, failures, strict=True) if failure}
        print(f"{len(failing)} tests fail on the unchanged tree, {time.monotonic() - began:.0f} s", flush=True)
        lines = []
        for line in workers.map(lambda mutant: _judged(scratches, mutant, tier, failing), mutants):
            print(line, flush=True)
            lines.append(line)
    unusable = sum(line.startswith("UNUSABLE") for line in lines)
    wrong = sum(not line.startswith(_AS_LISTED) for line in lines) - unusable
    print(f"{len(mutants)} mutants, {wrong} not as listed, {unusable} unusable, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 2 if unusable else 0


def main() -> int:
    parser = argparse.ArgumentParser("python3 -m tests.mutants.run", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only mutants whose names contain one of these")
    parser.add_argument(
        "--tier", choices=("gate", "nightly"), default="nightly", help="which tests to run; default: all"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        choices=range(1, 65),
        metavar="JOBS",
        help="how many to judge at a time; default: 1",
    )
    parser.add_argument("--list", action="store_true", help="list the mutants and their tests")
    parser.add_argument("--scratch", type=Path, help="keep the copies and their builds there, and reuse them")
    options = parser.parse_args()
    try:
        mutants = [one for one in read_all() if not options.words or any(word in one.name for word in options.words)]
        if options.jobs < 1:
            parser.error("--jobs is at least 1")
        if not mutants:
            parser.error(f"no mutant has one of these words in its name: {' '.join(options.words)}")
        if options.list:
            for mutant in mutants:
                named = ", ".join(map(str, mutant.tests("nightly"))) or "survives"
                print(f"{mutant.name}: {mutant.breaks} [{named}]")
            return 0
        if options.scratch:
            return _run_all(Scratches(options.scratch.resolve(), options.jobs), mutants, options.tier)
        with tempfile.TemporaryDirectory(prefix="bagua-net-mutants-") as scratch:
            return _run_all(Scratches(Path(scratch), options.jobs), mutants, options.tier)
    except (BadList, Unusable) as error:
        print(f"tests.mutants.run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
