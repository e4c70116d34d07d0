"""The built site (`make docs`) in a browser: light and dark, on a desk and on a phone. `make docs-check` runs this."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import join

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), "")
SCREENSHOTS = ROOT / "build" / "screenshots"
PAGES = ("", "cookbook/", "from-vllm/", "api/", "commands/", "performance/", "tour/", "source/CHANGELOG/")

MONOSPACED = """() => {
    const [narrow, wide] = ["iii", "MMM"].map(text => {
        const span = document.createElement("span");
        document.querySelector("code").append(span);
        span.textContent = text;
        return span.getBoundingClientRect().width;
    });
    return narrow > 0 && narrow === wide;
}"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs"),
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        join(thread)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="the extra `clients` is not installed")
    if not CHROMIUM:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.timing("Chromium's processes draw within the limits of its driver")
@pytest.mark.timeout(300)  # alone seconds; on a busy machine a page may take some
@pytest.mark.parametrize(
    ("scheme", "width", "pages"),
    [("light", 1280, PAGES), ("dark", 390, PAGES), ("dark", 1280, PAGES[:1]), ("light", 390, PAGES[:1])],
)
def test_pages_fit_and_are_quiet(browser: Any, address: str, scheme: str, width: int, pages: Sequence[str]) -> None:
    """No page is wider than its window, writes to the console, or asks another host for a thing; code is monospaced."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    context.set_default_timeout(60_000)
    opened = context.new_page()
    said: list[str] = []
    urls: set[str] = set()
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: urls.add(request.url))
    for page in pages:
        opened.goto(address + page)
        widest = opened.evaluate("document.documentElement.scrollWidth")
        assert widest <= width, f"{page or 'the landing page'} is {widest} wide"
        assert opened.evaluate(MONOSPACED), "code is in a font whose letters differ in width"
        background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        is_dark = sum(map(int, re.findall(r"\d+", background)[:3])) < 3 * 128
        assert is_dark == (scheme == "dark"), background
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        opened.screenshot(path=str(SCREENSHOTS / f"site-{page.strip('/').replace('/', '-')}-{scheme}-{width}.png"))
    context.close()
    assert said == []
    assert {url for url in urls if not url.startswith((address, "data:", "blob:"))} == set()


@pytest.mark.timing("Chromium's processes draw within the limits of its driver")
@pytest.mark.timeout(120)  # as above
def test_a_search_finds_a_page(browser: Any, address: str) -> None:
    opened = browser.new_page()
    opened.set_default_timeout(60_000)
    opened.goto(address)
    opened.click(".md-search__input")
    opened.keyboard.type("map_batches")
    opened.wait_for_selector(".md-search-result__item a[href*='cookbook/']", state="attached")
    opened.close()


PARAGRAPHS = re.compile(r"<p>(.*?)</p>", re.DOTALL)


def test_no_list_or_table_stayed_text() -> None:
    """Python-Markdown takes some lists and tables for text that GitHub shows as such: hooks.py spaces them."""
    for page in SITE.rglob("*.html"):
        for paragraph in PARAGRAPHS.findall(page.read_text(encoding="utf-8")):
            assert not re.search(r"^(- |1\. |\|.*\||`{3})", paragraph, re.MULTILINE), f"{page}: {paragraph[:300]}"
