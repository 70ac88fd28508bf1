# SPDX-License-Identifier: MIT
"""Other hosts' lines, from what `bagua-net export` serves there."""

from __future__ import annotations

import contextlib
import http.client
import math
import queue
import re
import threading
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field

from .._errors import BaguaNetError
from .._text import printable
from .lines import Line

PORT = 9478
_SECONDS = 5.0
_MOST_BYTES = 16 << 20

#: pid, rank, peer, device
Key = tuple[str, str, str, str]
_KEY = ("pid", "rank", "peer", "device")
#: Beside the key's, of some: the direction, a bucket's bound, a limit's name.
_BESIDE = ("direction", "le", "limit")


class ExporterUnusable(BaguaNetError):
    """It does not answer, or serves something else."""


@dataclass
class Look:
    """What an exporter served at a time."""

    host: str
    at: float
    #: a metric's values by key and direction, and by what stands beside these
    values: dict[str, dict[tuple[Key, str], dict[str, float]]] = field(default_factory=dict)
    #: nranks of each process
    sizes: dict[str, str] = field(default_factory=dict)
    #: when each process, by pid and rank, has published: seconds since 1970
    published: dict[tuple[str, str], float] = field(default_factory=dict)

    def get(self, name: str, key: Key, direction: str = "", beside: str = "") -> float:
        return self.beside(name, key, direction).get(beside, 0.0)

    def beside(self, name: str, key: Key, direction: str = "") -> dict[str, float]:
        """By what stands beside the key."""
        return self.values.get(name, {}).get((key, direction), {})


def address(named: str) -> tuple[str, str]:
    """The host, and the URL of its metrics. ``named``: HOST, HOST:PORT, or [IPv6]:PORT.

    Raises:
        ExporterUnusable: it is none of these.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\[\]:/@\s]+))(?::(\d{1,5}))?", named)
    if match is None:
        raise ExporterUnusable(f"{named}: not HOST, HOST:PORT or [IPv6]:PORT")
    address, host, port = match.groups()
    return address or host, f"http://{f'[{address}]' if address else host}:{port or PORT}/metrics"


def _fetch(url: str) -> str:
    """As far as it comes within the time. No proxy: these are hosts of a cluster."""
    deadline, data = time.monotonic() + _SECONDS, bytearray()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_SECONDS) as answer:
        while piece := answer.read1(1 << 16):
            data += piece
            if time.monotonic() > deadline or len(data) > _MOST_BYTES:
                raise TimeoutError("its answer takes too long")
    return data.decode()


def look(named: str) -> Look:
    """What it serves now.

    Raises:
        ExporterUnusable: it does not answer, or serves something else.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise ExporterUnusable("prometheus_client is not installed; pip install prometheus-client") from None
    host, url = address(named)
    found = Look(printable(host), time.monotonic())
    try:
        for family in text_string_to_metric_families(_fetch(url)):
            for sample in family.samples:
                _take(found, sample.name, sample.labels, sample.value)
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        why = f"{url}: {printable(reason)}"
        raise ExporterUnusable(f"{why}; does `bagua-net export --address 0.0.0.0` run there?") from None
    return found


def _take(found: Look, name: str, labels: dict[str, str], value: float) -> None:
    labels = {each: printable(text) for each, text in labels.items()}
    if not math.isfinite(value):
        return
    if name == "bagua_net_process_info":
        found.sizes[labels.get("pid", "")] = labels.get("nranks", "")
    elif name == "bagua_net_published_timestamp_seconds":
        found.published[labels.get("pid", ""), labels.get("rank", "")] = value
    elif "peer" in labels:
        key = (labels.get("pid", ""), labels.get("rank", ""), labels["peer"], labels.get("device", ""))
        beside = next((labels[each] for each in _BESIDE[1:] if each in labels), "")
        if "le" in labels:
            float(beside)
        found.values.setdefault(name, {}).setdefault((key, labels.get("direction", "")), {})[beside] = value


def look_at(names: Iterable[str]) -> tuple[dict[str, Look], list[str]]:
    """All at once: those that answer, and a sentence for each other one. Threads that a name look-up holds up are left
    to themselves."""
    answers: queue.Queue[tuple[str, Look | str]] = queue.Queue()

    def one(name: str) -> None:
        try:
            answers.put((name, look(name)))
        except ExporterUnusable as error:
            answers.put((name, str(error)))

    every = list(dict.fromkeys(names))
    for name in every:
        threading.Thread(target=one, args=(name,), daemon=True).start()
    found: dict[str, Look | str] = dict.fromkeys(every, "")
    deadline = time.monotonic() + 2 * _SECONDS
    with contextlib.suppress(queue.Empty):
        for _ in every:
            name, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            found[name] = answer
    looks = {name: each for name, each in found.items() if isinstance(each, Look)}
    return looks, [each or f"{name}: no answer" for name, each in found.items() if isinstance(each, str)]


# ---- lines ----


def _p99_us(now: Look, before: Look, key: Key, direction: str) -> float | None:
    buckets = now.beside("bagua_net_message_seconds_bucket", key, direction)
    earlier = before.beside("bagua_net_message_seconds_bucket", key, direction)
    counts = sorted((float(bound), count - earlier.get(bound, 0.0)) for bound, count in buckets.items())
    if not counts or counts[-1][1] <= 0:
        return None
    bound = next((bound for bound, count in counts if count >= 0.99 * counts[-1][1]), math.inf)
    return math.inf if math.isinf(bound) else bound * 1e6


def _line(now: Look, before: Look, key: Key, direction: str) -> Line:
    def since(name: str) -> float:
        return max(0.0, now.get(name, key) - before.get(name, key))

    pid, rank, peer, _ = key
    sends = direction == "send"
    size = now.sizes.get(pid, "")
    seconds = now.published.get(key[:2], now.at) - before.published.get(key[:2], before.at)
    moved = since("bagua_net_peer_sent_bytes_total" if sends else "bagua_net_peer_received_bytes_total")
    segments = since("bagua_net_peer_sent_segments_total")
    held = now.beside("bagua_net_peer_limit", key)
    return Line(
        host=now.host,
        pid=pid,
        rank=f"{rank}/{size}" if rank and size else rank,
        sends=sends,
        peer=peer,
        streams=f"{now.get('bagua_net_peer_streams', key, direction):.0f}",
        bytes_per_second=moved / seconds if seconds > 0 else 0.0,
        mean=None,
        p99_us=_p99_us(now, before, key, direction),
        rtt_us=now.get("bagua_net_peer_round_trip_seconds", key) * 1e6 if sends else 0.0,
        retransmitted=since("bagua_net_peer_retransmitted_segments_total") / segments if sends and segments else None,
        limit=max(held, key=lambda word: held[word]) if sends and any(held.values()) else "",
    )


def lines(now: dict[str, Look], before: dict[str, Look]) -> list[Line]:
    """Of the directions in which there are connections."""
    return [
        _line(each, before[name], key, direction)
        for name, each in now.items()
        if name in before
        for (key, direction), count in sorted(each.values.get("bagua_net_peer_connections", {}).items())
        if count.get("") and (key, direction) in before[name].values.get("bagua_net_peer_connections", {})
    ]
