# SPDX-License-Identifier: MIT
"""Words that this project used for its things and has replaced, as data: so that none comes back."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: (what was said, as a pattern; what is said now). A name's parts, between underscores, are words as well.
_OF_ANY_CASE = (
    (r"dial(s|ing|led|ling|ed)?", "connector, connecting"),
    (r"guests?", "inbound connection, acceptor"),
    (r"greet(s|ed|ings?)?", "handshake"),
    (r"promise[sd]?", "admission"),
    (r"earliest(?![ -]completion[ -]first)", "earliest-completion-first (ECF)"),
    (r"(?<!time )(?<!close_)(?<!exit_)budgets?", "in-flight limit"),
    (r"demands?", "stream scaling, scaler"),
    (r"bnet_flow", "estimator"),
    (r"(?<!e-)mail(s|box|boxes)?", "tagged messages"),
    (r"letter box(es)?", "tagged messages"),
    (r"(early )?letters?(?!,? (digits|and digits))", "unexpected messages, EAGER"),
    (r"parcels?", "DATA"),
    (r"bnet_zero", "zerocopy"),
    (r"bnet_table", "bnet_client"),
    (r"strangers?", "rejected; unknown client"),
    (r"bare (loops?|sockets?)", "raw sockets"),
    (r"conversations?", "ipc"),
    (
        r"(?<!candidate )pairs? of (an? )?(NICs?|interfaces?|cards?) and (an? |its |their )?address(es)?",
        "candidate pair",
    ),
    (r"(?<!_)(claim|flow|zero|table|pair|sock)\.[ch]", "the file's present name"),
    (r"(apart|bare)\.c|pair\.py", "core latency, raw sockets, load"),
    (r"plugin/README\.md|LOG\.md", "docs/"),
    (r"tests/(python|c|net|torch)(?!\w)", "tests/package, tests/unit and others, tests/netns, tests/torch_backend"),
)
#: Frames of tagged messages.
_CAPITALS = (
    (r"LETTER", "EAGER"),
    (r"ANNOUNCE", "RTS"),
    (r"GO", "CTS"),
    (r"PARCEL", "DATA"),
    (r"TAKEN", "CREDIT"),
)

#: Collectives had no prefix of their own.
_COLLECTIVES = (
    "allreduce|reduce_scatter|all_gather|broadcast|all_to_all|all_to_allv|reduce_to|gather|scatter|send|recv|sendrecv|"
    "barrier|reduce|scale|dtype_size"
)
_OLD_NAME = re.compile(rf"bnet_({_COLLECTIVES})|mail_\w+")
#: Parts of names that are gone. "table" is not one: NCCL's own are tables.
_OLD_PARTS = frozenset(
    ("dial", "guest", "guests", "greet", "promise", "budget", "demand", "flow", "mail", "letter", "strangers", "zero")
)

EXAMPLES = (
    "a dialled socket",
    "two guests",
    "it greets",
    "A claim is a promise.",
    "the earliest stream",
    "beyond its budget",
    "Streams on demand",
    "test_demand.py",
    "bnet_flow_read",
    "a mailbox",
    "early letters kept for nobody",
    "LETTER 1",
    "an ANNOUNCE, then GO",
    "TAKEN 5",
    "two parcels",
    "bnet_zero_start",
    "bnet_table_t",
    "stranger_replay",
    "the bare loop",
    "`conversation.py`",
    "a pair of NIC and address",
    "`claim.c`",
    "`tests/python/drivers.py`",
    "tests/net",
    "see LOG.md",
)
COUNTEREXAMPLES = (
    "eight flow classes",
    "0 sets none, zero too",
    "pairs of readings",
    "a candidate pair of NIC and address",
    "a name of up to 15 letters, digits, - and _",
    "earliest-completion-first scheduling",
    "### Earliest completion first",
    "all closes share one time budget: `close_budget`, `exit_budget`",
    "`drive_net_flow.c`",
    "a stream claims a slice",
    "zerocopy, bnet_zerocopy_start",
    "NCCL's table of version 12",
    "the report goes on; it was taken",
    "an e-mail",
    "tests/netns/ and tests/torch_backend/",
    "far apart",
)


def _compile(pattern: str, flags: int) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", flags)


_PATTERNS = [(_compile(pattern, re.IGNORECASE), new) for pattern, new in _OF_ANY_CASE]
_PATTERNS += [(_compile(pattern, 0), new) for pattern, new in _CAPITALS]


def found(text: str) -> Iterator[str]:
    """Each old term of a text, with its line and what is said now."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, new in _PATTERNS:
            for match in pattern.finditer(line):
                yield f"line {number}: {match[0]} (now: {new})"


def is_old_name(name: str) -> bool:
    """Is an identifier of the public header one of before?"""
    return bool(_OLD_NAME.fullmatch(name)) or not _OLD_PARTS.isdisjoint(name.lower().split("_"))
