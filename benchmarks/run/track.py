# SPDX-License-Identifier: MIT
"""One run over the cells of a plan: the order of the readings, the choice of settings, and what ends a run."""

from __future__ import annotations

import itertools
import json
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.loads.processes import RankFailed
from benchmarks.networks import namespaces, shared, wan
from benchmarks.report import machine, results
from benchmarks.report.markdown import QUIET
from benchmarks.run import sides as contenders
from benchmarks.run.effort import Effort
from benchmarks.run.scenarios import PATHS, Cell, cells

#: Factor by which a reading may exceed the capacity of the flow classes: a window opens on full buffers.
_OVER_CAPACITY = 1.02


Network = namespaces.Hosts | shared.Shared


class TrackError(Exception):
    """The run cannot continue; the text says why and what to do."""


@dataclass(frozen=True)
class Plan:
    """The content of the command line."""

    scenarios: frozenset[str]
    sides: tuple[str, ...]
    effort: Effort
    quick: bool
    settings: Mapping[str, str]
    congestion_control: str
    files: contenders.Files
    output: Path
    sizes: frozenset[int] = frozenset()
    """Bytes of a message; empty: all."""
    connections: frozenset[int] = frozenset()
    """Of streams, per peer and direction; empty: all."""
    paths: frozenset[str] = frozenset(PATHS)
    rows: str = ""
    """A regular expression: only cells whose key has it."""

    def cells(self) -> list[Cell]:
        """The cells to measure, in the order of the report."""
        return [cell for cell in cells(self.quick) if self._wants(cell)]

    def _wants(self, cell: Cell) -> bool:
        if cell.scenario not in self.scenarios or cell.path not in self.paths:
            return False
        if not re.search(self.rows, cell.key):
            return False
        if self.sizes and cell.size not in self.sizes:
            return False
        fixed = cell.work in ("pingpong", "collective")
        return fixed or not self.connections or cell.connections in self.connections


class Track:
    """One run over the cells of a plan."""

    def __init__(self, plan: Plan, stored: results.Results) -> None:
        self._plan = plan
        self._results = stored
        self.failed = 0

    def run(self) -> None:
        """Measures every cell that is not complete yet.

        Raises:
            TrackError: a reading exceeds the capacity of the flow classes.
        """
        for _, group in itertools.groupby(self._plan.cells(), key=lambda cell: cell.block):
            block = list(group)
            names = [name for name in self._plan.sides if self._takes_part(block[0], name)]
            if names and not self._complete(block, names):
                with self._network(block[0]) as hosts:
                    self._measure_block(block, names, hosts)

    def _takes_part(self, cell: Cell, name: str) -> bool:
        if name not in cell.heading.sides:
            return False
        reason = contenders.obstacle(cell, name, self._plan.files)
        if reason:
            print(f"{cell.block}: without {name}: {reason}", file=sys.stderr, flush=True)
        return not reason

    @contextmanager
    def _network(self, cell: Cell) -> Iterator[Network]:
        congestion_control = self._plan.congestion_control
        if cell.path == "wan":
            with self._line(cell) as hosts:
                yield hosts
        elif cell.path == "shared":
            lay = shared.PLACES[cell.place]
            congestion_control = cell.congestion
            with lay(cell.pairs, cell.shared_mbits, cell.fair, cell.classes_mbits, congestion_control) as bottleneck:
                yield bottleneck
        elif cell.path == "cables":
            with namespaces.cables(cell.cables_mbits, congestion_control) as hosts:
                yield hosts
        else:
            build = namespaces.loopback if cell.path == "loopback" else namespaces.veth
            with build(congestion_control) as hosts:
                if cell.classes_mbits:
                    namespaces.shape(hosts, cell.classes_mbits)
                for host in dict.fromkeys(hosts) if cell.interfaces else ():
                    namespaces.crowd(host, cell.interfaces)
                yield hosts

    @contextmanager
    def _line(self, cell: Cell) -> Iterator[namespaces.Hosts]:
        line = wan.Line(cell.round_trip_ms, cell.loss_percent / 100)
        with wan.wan(self._plan.files.relay, line, cell.congestion) as emulated:
            yield emulated.hosts
        self._record(cell).lines.append(emulated.counts)
        self._results.save(self._plan.output)
        _check_line(cell, emulated.counts)

    def _record(self, cell: Cell) -> results.CellRecord:
        limit = namespaces.capacity(cell.rates_mbits) if cell.rates_mbits else None
        return self._results.cells.setdefault(cell.key, results.CellRecord(cell, limit))

    # ---- what is missing ----

    def _has(self, block: Sequence[Cell], side: str, choice: str, pair: int) -> bool:
        """Cells of a block are read together."""
        return all(self._record(cell).has(side, choice, pair) for cell in block)

    def _finalists(self, block: Sequence[Cell], name: str) -> list[contenders.Side] | None:
        """The settings of this side that are read in every pair; None where the screening is still to do."""
        options = self._candidates(block, name, self._plan.effort)
        if len(options) == 1:
            return options
        if len(options) <= self._plan.effort.finalists:
            for cell in block:
                self._record(cell).finalists[name] = [side.choice for side in options]
            return options
        chosen = self._record(block[0]).finalists.get(name)
        if chosen is None:
            return None
        return [side for choice in chosen for side in options if side.choice == choice]

    def _pair_is_read(self, block: Sequence[Cell], sides: Sequence[contenders.Side], pair: int) -> bool:
        return all(self._has(block, side.name, side.choice, pair) for side in sides)

    def _complete(self, block: Sequence[Cell], names: Sequence[str]) -> bool:
        found = [self._finalists(block, name) for name in names]
        sides = [side for options in found if options is not None for side in options]
        pairs = range(self._plan.effort.pairs_for(block[0].heading))
        return None not in found and all(self._pair_is_read(block, sides, pair) for pair in pairs)

    # ---- readings ----

    def _measure_block(self, block: Sequence[Cell], names: Sequence[str], hosts: Network) -> None:
        sides = [side for name in names for side in self._finalists(block, name) or self._screen(block, name, hosts)]
        for pair in range(self._plan.effort.pairs_for(block[0].heading)):
            if self._pair_is_read(block, sides, pair):
                continue
            # All sides of the pair, whatever is there already: they share one seed and one moment.
            turn = pair % len(sides)
            seed = self._seed(block[0], hosts)
            for batch in contenders.batches(sides[turn:] + sides[:turn], block[0]):
                self._read(block, batch, hosts, pair, seed)
            for cell in block:
                self._record(cell).choose()
            self._results.save(self._plan.output)

    def _seed(self, cell: Cell, hosts: Network) -> int:
        """A new mapping of flows to classes, the same for all sides of a pair; 0 where there are no classes."""
        if not cell.classes_mbits and not cell.fair:
            return 0
        seed = secrets.randbelow(0xFFFFFFFF) + 1
        self._hash(cell, hosts, seed)
        return seed

    def _hash(self, cell: Cell, hosts: Network, seed: int) -> None:
        if not seed:
            return
        if isinstance(hosts, shared.Shared):
            shared.hash_flows(hosts, cell.fair, len(cell.classes_mbits), seed)
        else:
            namespaces.hash_flows(hosts, len(cell.classes_mbits), seed)

    def _candidates(self, block: Sequence[Cell], name: str, effort: Effort) -> list[contenders.Side]:
        return contenders.candidates(block, name, effort, self._plan.files, self._plan.settings)

    def _screen(self, block: Sequence[Cell], name: str, hosts: Network) -> list[contenders.Side]:
        """Reads all settings of this side with shorter windows. The best of them become its finalists."""
        effort, record = self._plan.effort, self._record(block[0])
        short = self._candidates(block, name, effort.for_screening())
        rounds = effort.screening_rounds(record.cell)
        # Variants of the best meet the same seeds.
        seeds = [self._seed(record.cell, hosts) for _ in range(rounds)]
        self._read_all(block, [side for side in short if not side.varies], hosts, seeds)
        best = record.ranking(name, screening=True)[: effort.varied]
        self._read_all(block, [side for side in short if side.varies in best], hosts, seeds)
        ranking = record.ranking(name, screening=True)
        if not ranking:
            raise TrackError(f"{record.cell.key}: no setting of {name} could be measured")
        record.finalists[name] = ranking[: effort.finalists]
        finalists = self._finalists(block, name)
        assert finalists is not None
        return finalists

    def _read_all(
        self, block: Sequence[Cell], sides: Sequence[contenders.Side], hosts: Network, seeds: Sequence[int]
    ) -> None:
        """A round of the screening for each seed."""
        for turn, seed in enumerate(seeds):
            self._hash(block[0], hosts, seed)
            for side in sides:
                self._read(block, [side], hosts, -1 - turn, seed)

    def _read(
        self, block: Sequence[Cell], batch: Sequence[contenders.Side], hosts: Network, pair: int, seed: int
    ) -> None:
        """Reads a batch of sides once and keeps the readings of each cell."""
        read = [(side, [results.Run(side.name, side.choice, pair, seed, None, []) for _ in block]) for side in batch]
        neighbours = machine.Neighbours()
        try:
            for (_, runs), readings in zip(read, contenders.read(batch, hosts), strict=True):
                for run, reading in zip(runs, readings, strict=True):
                    run.value, run.per_rank, run.details = reading.value, reading.per_rank, reading.details
        except RankFailed as error:
            for _, runs in read:
                for run in runs:
                    run.error = str(error)
            self.failed += 1
        share = neighbours.share()
        kept = [(self._record(cell), run) for _, runs in read for cell, run in zip(block, runs, strict=True)]
        for record, run in kept:
            run.neighbours = share
            record.keep(run)
        self._results.save(self._plan.output)
        for record, run in kept:
            _tell(record, run)
            _check_limit(record, run)


def _tell(record: results.CellRecord, run: results.Run) -> None:
    """A line per reading, on stderr."""
    label = f"{run.side} {run.choice}".strip()
    turn = "screening" if run.pair < 0 else f"pair {run.pair + 1}"
    seed = f", seed {run.seed:#010x}" if run.seed else ""
    outcome = run.error if run.value is None else f"{run.value:.4g}"
    if run.neighbours > QUIET:
        outcome += f" (other processes took {run.neighbours:.0%} of the processors)"
    print(f"{record.cell.key}, {turn}, {label}{seed}: {outcome}", file=sys.stderr, flush=True)


def _check_limit(record: results.CellRecord, run: results.Run) -> None:
    if record.limit is None or run.value is None or record.cell.work != "stream":
        return
    if max(run.per_rank) > record.limit * _OVER_CAPACITY:
        raise TrackError(
            f"{record.cell.key}: {run.side} read {max(run.per_rank):.3f} GB/s where the flow classes let "
            f"{record.limit:.3f} through: the shaper does not work, nothing of this file can be used"
        )


def _check_line(cell: Cell, counts: dict[str, Any]) -> None:
    """Packets that a device dropped are losses beyond those that were asked for."""
    print(f"{cell.key}: {json.dumps(counts)}", file=sys.stderr, flush=True)
    dropped = sum(direction["dropped"] for direction in counts["directions"])
    if dropped:
        raise TrackError(f"{cell.key}: {dropped} packets did not reach the relay: nothing of this cell can be used")
