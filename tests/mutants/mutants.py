# SPDX-License-Identifier: MIT
"""The list of mutants, tests/mutants/*.mutants: small changes that break one thing each, and the tests that notice.

    # a comment
    mutant send_buffer_never_fitted: streams keep the buffer that the kernel gave them
    file plugin/scaling/path.c
    - 	if (want == stream->estimator.sndbuf)
    + 	if (want)
    red test_path
    red contract:close_budget
    nightly tests/netns/test_silence.py::test_a_partition
    survives: why no test can notice

Text after "- " occurs exactly once in the file and is replaced by the text after "+ "; several lines of one sign are
consecutive lines. A mutant may have several replacements, each a block of "- " lines, perhaps followed by "+ " lines,
in the file named last. ``red`` names a test that fails in the gate: a unit test, a scenario of drive_contract, perhaps
followed by settings (VARIABLE=VALUE), or a pytest node. ``nightly`` names one that fails in .ci/nightly and not, or not
as a whole, in the gate. Every test of a mutant must fail. A mutant that ``survives`` has an explanation and may name
tests that stay green.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class BadList(Exception):
    """The list is wrong, or no longer fits the code. The message names the place."""


@dataclass
class Replacement:
    file: str
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    def apply(self, text: str) -> str:
        """``text`` with the replacement made; BadList unless the old text is there exactly once."""
        old = "\n".join(self.old)
        if text.count(old) != 1:
            raise BadList(f"{self.file} has this {text.count(old)} times instead of once:\n{old}")
        return text.replace(old, "\n".join(self.new))


@dataclass(frozen=True, order=True)
class Test:
    """A test, with the parameters of that tier."""

    name: str
    tier: str

    def __str__(self) -> str:
        return self.name if self.tier == "gate" else f"{self.name} at night"


@dataclass
class Mutant:
    name: str
    breaks: str
    place: str
    replacements: list[Replacement] = field(default_factory=list)
    red: list[str] = field(default_factory=list)
    nightly: list[str] = field(default_factory=list)
    survives: str = ""

    def tests(self, tier: str) -> list[Test]:
        """Those that fail up to this tier."""
        nightly = self.nightly if tier == "nightly" else []
        return [*(Test(name, "gate") for name in self.red), *(Test(name, "nightly") for name in nightly)]

    def files(self, root: Path) -> dict[Path, str]:
        """The changed files below ``root`` with their new text; BadList where a replacement does not fit."""
        changed: dict[Path, str] = {}
        for replacement in self.replacements:
            path = root / replacement.file
            if not path.is_file():
                raise BadList(f"{self.place}: mutant {self.name}: no file {replacement.file}")
            try:
                changed[path] = replacement.apply(changed.get(path) or path.read_text())
            except BadList as bad:
                raise BadList(f"{self.place}: mutant {self.name}: {bad}") from None
        return changed


def _add_line(mutant: Mutant, file: str, line: str) -> None:
    sign, text = line[0], line[2:]
    begins = sign == "-" and (not mutant.replacements or mutant.replacements[-1].new)
    if begins or (mutant.replacements and mutant.replacements[-1].file != file):
        mutant.replacements.append(Replacement(file))
    if not mutant.replacements:
        raise BadList(f"{mutant.place}: mutant {mutant.name}: '+' without '-'")
    (mutant.replacements[-1].old if sign == "-" else mutant.replacements[-1].new).append(text)


def _parse(path: Path) -> Iterator[Mutant]:
    mutant: Mutant | None = None
    file = ""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        place = f"{path.name}:{number}"
        key, _, rest = line.partition(" ")
        if not line or line.startswith("#"):
            continue
        if key == "mutant":
            if mutant:
                yield mutant
            name, colon, breaks = rest.partition(": ")
            if not colon:
                raise BadList(f"{place}: 'mutant NAME: what it breaks' is needed")
            mutant, file = Mutant(name, breaks, place), ""
        elif mutant is None:
            raise BadList(f"{place}: a mutant is needed first")
        elif key == "file":
            file = rest
        elif key in ("-", "+"):
            _add_line(mutant, file, line if len(line) > 1 else line + " ")
        elif key == "red":
            mutant.red.append(rest)
        elif key == "nightly":
            mutant.nightly.append(rest)
        elif key == "survives:":
            mutant.survives = rest
        else:
            raise BadList(f"{place}: unknown line: {line}")
    if mutant:
        yield mutant


def read_all() -> list[Mutant]:
    """Every mutant of every list, by file and line; BadList if one is incomplete or has a name twice."""
    mutants = [mutant for path in sorted(HERE.glob("*.mutants")) for mutant in _parse(path)]
    seen: set[str] = set()
    for mutant in mutants:
        if mutant.name in seen:
            raise BadList(f"{mutant.place}: there is another mutant {mutant.name}")
        if not mutant.replacements or not (mutant.red or mutant.nightly or mutant.survives):
            raise BadList(f"{mutant.place}: mutant {mutant.name} changes nothing, or names no test")
        seen.add(mutant.name)
    return mutants
