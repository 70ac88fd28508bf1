# SPDX-License-Identifier: MIT
"""The plugin under a sanitizer, loaded by real NCCL, which is not: what NCCL's threads do with it, whole, aborted, and
after the loss of a peer, gives no report.

The sanitizers see the plugin, libc's functions, and locks; not what NCCL and the emulated GPU read and write, nor their
atomic variables. Therefore a race between memory accesses counts only if the plugin makes both of them.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nccl import faults, nccl_job, releases
from tests.support import drivers
from tests.support.tiers import variants

#: bnet_conn_new clears a connection's memory on the thread that connects, and hand_out writes its communicator's
#: profiler there; NCCL hands the connection to its progress thread by a variable that ThreadSanitizer does not see. The
#: emulated GPU writes the payload of messages with memmove, and hands it over in the same way.
SUPPRESSIONS = "race:bnet_conn_new\nrace:hand_out\ncalled_from_lib:libbagua-net-emulator.so\n"
_RUNTIME = re.compile(r"lib[at]san\.so\S* => (?P<path>/\S+)")
_PLUGIN_FRAME = re.compile(r"libnccl-net-bagua\.so|" + re.escape(f"{drivers.ROOT}/") + "(plugin|common)/")
_RUNTIME_FRAME = re.compile(r"libsanitizer|lib[at]san")
_FRAME = re.compile(r"^ +#\d+ .*$", re.MULTILINE)
_ACCESS = re.compile(
    r"^  (?:Previous )?(?:atomic )?(?:read|write) of size .*\n(?P<frames>(?: +#\d+ .*\n)+)", re.I | re.M
)


@dataclass(frozen=True)
class Sanitized:
    plugin: Path
    settings: dict[str, str]
    prefix: list[str]
    """Of each rank's command: the runtime has to be loaded first, at addresses that ThreadSanitizer can map."""
    directory: Path

    def reports(self) -> list[str]:
        """Those that count."""
        return [each for path in sorted(self.directory.glob("report.*")) for each in counting(path.read_text())]


def _leaks(text: str) -> list[str]:
    return re.findall(r"(?:Direct|Indirect) leak of .*\n(?: +#\d+ .*\n)+", text)


def _is_ours(report: str) -> bool:
    if not _PLUGIN_FRAME.search(report):
        return False
    if "data race" not in report.partition("\n")[0]:
        return True
    tops = []
    for access in _ACCESS.finditer(report):
        frames = [frame for frame in _FRAME.findall(access["frames"]) if not _RUNTIME_FRAME.search(frame)]
        tops.append(bool(frames) and bool(_PLUGIN_FRAME.search(frames[0])))
    return len(tops) < 2 or all(tops)


def counting(text: str) -> list[str]:
    """The reports of a sanitizer's log that count: each error, each leak of memory that the plugin allocated, and what
    ThreadSanitizer says about the plugin."""
    found = [leak for leak in _leaks(text) if _PLUGIN_FRAME.search(leak)]
    if "ERROR: AddressSanitizer" in text or "runtime error:" in text:
        found.append(text)
    return found + [each for each in re.split(r"^WARNING: ThreadSanitizer: ", text, flags=re.M)[1:] if _is_ours(each)]


@pytest.fixture(params=drivers.SANITIZERS)
def sanitized(request: pytest.FixtureRequest, tmp_path: Path) -> Sanitized:
    plugin = drivers.build(request.param).library
    linked = subprocess.run(["ldd", str(plugin)], capture_output=True, text=True, check=True).stdout
    runtime = _RUNTIME.search(linked)
    if runtime is None:
        pytest.skip("this compiler has no sanitizer that a program can load at its start")
    suppressions, reports = tmp_path / "suppressions", tmp_path / "report"
    suppressions.write_text(SUPPRESSIONS)
    settings = {
        "ASAN_OPTIONS": f"detect_leaks=1:detect_stack_use_after_return=1:log_path={reports}",
        "LSAN_OPTIONS": "exitcode=0",  # the interpreter leaks
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"exitcode=0:second_deadlock_stack=1:suppressions={suppressions}:log_path={reports}",
    }
    return Sanitized(plugin, settings, ["setarch", "-R", "env", f"LD_PRELOAD={runtime['path']}"], tmp_path)


def _start(
    program: str, version: str, sanitized: Sanitized, settings: dict[str, str]
) -> AbstractContextManager[nccl_job.Job]:
    return nccl_job.start(
        program,
        2,
        version,
        nccl_job.BAGUA,
        sanitized.directory,
        settings={**releases.settings(version), **sanitized.settings, **settings},
        prefixes=[sanitized.prefix] * 2,
        plugin=sanitized.plugin,
        seconds=600,
    )


@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", variants("Simple", nightly=["LL"]))
@pytest.mark.parametrize("threads", variants("0", nightly=["2"]))
@pytest.mark.parametrize("version", releases.FEW)
def test_traffic(version: str, threads: str, protocol: str, sanitized: Sanitized) -> None:
    settings = {
        "NCCL_PROTO": protocol,
        "BAGUA_NET_THREADS": threads,
        "BAGUA_NET_MIN_NSTREAMS": "4",
        "BAGUA_NET_MIN_CHUNKSIZE": "4K",
        "BAGUA_NET_MAX_CHUNKSIZE": "64K",
    }
    with _start("traffic_rank", version, sanitized, settings) as job:
        assert job.ask({"do": "sums", "counts": [1, 3_000, 70_001, 500_000], "times": 2}) == [0, 0]
        assert job.ask({"do": "exchange", "counts": [1, 5_000, 100_003]}) == [0, 0]
        job.finish(300)
    assert sanitized.reports() == []


@pytest.mark.nightly
@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", releases.FEW)
def test_lives(version: str, sanitized: Sanitized) -> None:
    """Communicators beside others, one after another, and aborted in the middle."""
    with _start("lifecycle_rank", version, sanitized, {"BAGUA_NET_MIN_NSTREAMS": "2"}) as job:
        for task in ({"do": "threads"}, {"do": "split"}, {"do": "lives", "times": 4}, {"do": "leave_busy"}):
            job.ask(task)
        job.finish(300)
    assert sanitized.reports() == []


@pytest.mark.nightly
@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("threads", ["0", "2"])
@pytest.mark.parametrize("version", releases.FEW)
def test_a_rank_is_killed(version: str, threads: str, sanitized: Sanitized) -> None:
    (finding,) = faults.killed(
        faults.Place(
            version,
            nccl_job.BAGUA,
            sanitized.directory,
            settings={**sanitized.settings, "BAGUA_NET_THREADS": threads, "BAGUA_NET_MIN_NSTREAMS": "2"},
            plugin=sanitized.plugin,
            prefix=sanitized.prefix,
        )
    )
    assert finding.code == (faults.REMOTE_ERROR if releases.reports_errors(version) else faults.NOTHING)
    assert (finding.end, finding.stream) == (0, 0)
    assert sanitized.reports() == []


# ---- which reports count ----

_SOURCE = str(drivers.ROOT / "plugin" / "transport" / "conn.c")
_OURS = (
    f"    #0 memset ../libsanitizer/x.inc:1 (libtsan.so+0x1)\n    #1 bnet_a {_SOURCE}:1 (libnccl-net-bagua.so+0x1)\n"
)
_NCCLS = "    #0 ncclProxyProgress proxy.cc:1 (libnccl.so.2+0x1)\n"


def _race(first: str, second: str) -> str:
    head = "==================\nWARNING: ThreadSanitizer: data race (pid=1)\n"
    return (
        f"{head}  Read of size 8 at 0x1 by thread T1:\n{first}\n  Previous atomic write of size 8 at 0x1:\n{second}\n"
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "count"),
    [
        (_race(_OURS, _OURS), 1),
        (_race(_OURS, _NCCLS + _OURS), 0),
        (_race(_NCCLS, _NCCLS), 0),
        (_race(_OURS, _OURS) + _race(_OURS, _NCCLS), 1),
        (f"WARNING: ThreadSanitizer: lock-order-inversion (pid=1)\n{_OURS}", 1),
        (f"WARNING: ThreadSanitizer: lock-order-inversion (pid=1)\n{_NCCLS}", 0),
        (f"Direct leak of 8 byte(s) in 1 object(s) allocated from:\n    #0 0x1 in malloc\n{_OURS}\n", 1),
        ("Direct leak of 8 byte(s) in 1 object(s) allocated from:\n    #0 0x1 in malloc\n    #1 0x2 in list_new\n", 0),
        (f"==1==ERROR: AddressSanitizer: heap-use-after-free\n{_NCCLS}", 1),
    ],
)
def test_what_counts(text: str, count: int) -> None:
    assert len(counting(text)) == count
