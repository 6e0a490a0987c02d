"""The built site in headless Chromium: errors, pictures, phone width, light and dark, search.

Skips, and says why, where there is no Chromium, no built site or no package for websockets.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
PHONE, DESK = (390, 844), (1280, 900)
SOME = (
    "index.html", "which-method.html", "manual.html", "results.html", "notation.html",
    "notebooks/learn.html", "api/learn.html", "bases.html", "howto/own-bound.html",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

LOOK = """(() => {
  const seen = (e) => e.complete && e.naturalWidth > 0 && e.getBoundingClientRect().width > 0;
  const pictures = [...document.querySelectorAll("article img")];
  const numbers = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const shade = (text) => numbers(text).reduce((a, b) => a + b) / 765;
  const style = getComputedStyle(document.body);
  return {
    title: document.title,
    pictures: pictures.length,
    missing: pictures.filter((e) => !seen(e)).map((e) => e.src),
    wide: document.documentElement.scrollWidth - window.innerWidth,
    background: shade(style.backgroundColor),
    ink: shade(style.color),
    text: document.querySelector("article").innerText.length,
  };
})()"""


class Browser:
    """One tab, spoken to by the DevTools protocol."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = count(1)
        self.errors: list[str] = []
        self._loaded = False
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv(timeout=30))
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]
            self._event(told)

    def _event(self, told: dict[str, Any]) -> None:
        method, given = told.get("method"), told.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "assert"):
            self.errors.append(str(given["args"])[:500])
        elif method == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")

    def open(self, page: str, *, size: tuple[int, int] = DESK, scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self._loaded = False
        self.call("Page.navigate", url=f"{SITE.as_uri()}/{page}")
        ends = time.monotonic() + 30
        while not self._loaded and time.monotonic() < ends:
            self._event(json.loads(self._socket.recv(timeout=30)))

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"]["value"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed, so the site was not looked at")
    if not (SITE / "index.html").is_file():
        pytest.skip("build/site is not there: make docs builds it")
    client = pytest.importorskip(
        "websockets.sync.client", reason="the package websockets is not installed"
    )
    profile = tmp_path_factory.mktemp("profile")
    started = subprocess.Popen(
        [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        address = _tab(profile / "DevToolsActivePort", started)
        with client.connect(address, max_size=None) as socket:
            yield Browser(socket)
    finally:
        started.terminate()
        started.wait(20)


def _tab(told: Path, started: subprocess.Popen[bytes]) -> str:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if started.poll() is not None:
            pytest.skip(f"Chromium did not start: it ended with {started.returncode}")
        if told.is_file() and told.read_text().strip():
            port = told.read_text().split()[0]
            with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.2)
    pytest.skip("Chromium did not say within a minute where it listens")


def pages() -> list[str]:
    return sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))


@pytest.mark.slow
def test_every_page_on_a_phone(browser: Browser) -> None:
    """No error in the console, no missing picture, nothing wider than the screen."""
    complaints, pictures = [], 0
    for page in pages():
        browser.errors.clear()
        browser.open(page, size=PHONE)
        found = browser.value(LOOK)
        pictures += found["pictures"]
        if browser.errors or found["missing"] or found["wide"] > 0:
            complaints.append((page, browser.errors[:], found["missing"], found["wide"]))
    assert complaints == []
    assert pictures >= 10


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(browser: Browser, scheme: str, size: tuple[int, int]) -> None:
    for page in SOME:
        browser.errors.clear()
        browser.open(page, size=size, scheme=scheme)
        found = browser.value(LOOK)
        assert not browser.errors and not found["missing"], page
        assert found["text"] > 200, page
        assert (found["background"] < 0.3) == (scheme == "dark"), (page, found)
        assert abs(found["background"] - found["ink"]) > 0.5, (page, found)


@pytest.mark.parametrize("word", ["evidence", "LearnConfig", "quarter turns"])
def test_search_works_without_a_server(browser: Browser, word: str) -> None:
    browser.errors.clear()
    browser.open(f"search.html?q={word.replace(' ', '+')}")
    ends = time.monotonic() + 20
    found = 0
    while not found and time.monotonic() < ends:
        found = browser.value("document.querySelectorAll('#search-results li a').length")
        time.sleep(0.2)
    assert browser.errors == []
    assert found > 0, browser.value("document.querySelector('article').innerText")


def test_a_missing_picture_an_error_and_a_wide_page_would_be_noticed(
    browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<title>bad</title><article style='width: 2000px'>text<img src='no.svg' width=9></article>"
        "<script>missing()</script>"
    )
    browser.errors.clear()
    browser._loaded = False
    browser.call("Page.navigate", url=page.as_uri())
    time.sleep(1)
    found = browser.value(LOOK)
    assert found["missing"] and found["wide"] > 0
    assert any("missing is not defined" in error for error in browser.errors)
