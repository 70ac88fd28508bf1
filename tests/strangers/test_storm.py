# SPDX-License-Identifier: MIT
"""A thousand strangers a second at the listener of a job that runs: messages arrive as they are, and the process has no
more memory and no more descriptors than before. Strangers that stay take no more than their share of the descriptors.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.steps import LARGE, End, counters, listen, meet, pass_one
from tests.strangers import here, protocol, storm
from tests.strangers.protocol import Handle
from tests.support.tiers import variants

SECRET = b"the secret of this job"
RATE = 1000
SIZE = 1 << 16
MESSAGES = 900
#: Of descriptors that strangers may hold at a time, beside the job's own: those that are not dropped yet.
HELD = 1024
#: Strangers that stay and say nothing, and open files of a process an eighth of which is more than HELD.
SILENT, FILES = 3000, 16384
#: What the allocator keeps, and what strangers at a time take, of 1.3 KB each.
KIB = 8 * 1024


def _descriptors(end: End) -> int:
    return len(list(Path(f"/proc/{end.pid()}/fd").iterdir()))


def _resident_kib(end: End) -> int:
    status = Path(f"/proc/{end.pid()}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


@pytest.mark.gate  # strangers that are silent are heard for ten seconds
@pytest.mark.parametrize(
    ("secret", "seconds", "share"),
    variants(
        pytest.param(SECRET, 3, 0.1, id="secret"),
        nightly=[
            pytest.param(None, 3, 0.1, id="token"),
            pytest.param(SECRET, 600, 0.5, id="long", marks=pytest.mark.timeout(1500)),
        ],
    ),
)
def test_a_thousand_strangers_a_second(tmp_path: Path, secret: bytes | None, seconds: int, share: float) -> None:
    """share: of the strangers that must have come, since a machine is busy at times, and not for long."""
    with (
        here.end(tmp_path, "receiver", secret, deadline=seconds + 300) as receiver,
        here.end(tmp_path, "sender", secret, deadline=seconds + 300) as sender,
    ):
        handle = listen(receiver)
        sender.tell(f"connect {handle}")
        assert sender.answer() == "ok"
        assert receiver.ask("accept more") == "ok"
        pass_one(sender, receiver, 0, LARGE)
        before = _descriptors(receiver), _resident_kib(receiver)
        most = 0
        known = Handle.parse(handle)
        if not secret:  # who has the token is no stranger
            known = Handle(bytes(len(known.token)), known.address)
        with storm.against(known, RATE) as strangers:
            until, message = time.monotonic() + seconds, 1
            while time.monotonic() < until:
                pass_one(sender, receiver, message, SIZE)
                most = max(most, _descriptors(receiver))
                assert _resident_kib(receiver) < before[1] + message * (SIZE >> 10) + KIB
                message += 1
                time.sleep(seconds / MESSAGES)  # the driver keeps them all
        assert strangers.opened > RATE * seconds * share
        assert most <= before[0] + HELD
        receiver.until(lambda: _descriptors(receiver) <= before[0])


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process, and those that it starts, may open FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, max(hard, FILES)))
    except (ValueError, OSError) as error:
        pytest.skip(f"the limit of open files cannot be raised from {hard} to {FILES}: {error}")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.gate
@pytest.mark.usefixtures("many_files")
def test_silent_strangers_take_their_share_of_descriptors_and_keep_nobody_out(tmp_path: Path) -> None:
    with (
        here.end(tmp_path, "receiver", SECRET) as receiver,
        here.end(tmp_path, "sender", SECRET) as sender,
        contextlib.ExitStack() as strangers,
    ):
        handle = listen(receiver)
        before = most = _descriptors(receiver)
        for number in range(SILENT):
            strangers.enter_context(protocol.dial(Handle.parse(handle)))
            if number % 20 == 0:
                most = max(most, _descriptors(receiver))
        receiver.until(lambda: counters(receiver)["rejected"] >= SILENT - HELD)
        most = max(most, _descriptors(receiver))
        # At the bound, and not after ten seconds of silence.
        assert "too many connections have not said who they are" in receiver.log()
        assert most <= before + HELD + 1  # a new one is there before the oldest is dropped
        sender.tell(f"connect {handle}")
        meet(sender, receiver)
        pass_one(sender, receiver, 1, LARGE)
