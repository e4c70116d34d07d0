"""The page in Debian's Chromium: a chat, its stop, an image, a schema, the live view, the keyboard, both colours."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.page.conftest import Drafting
from tests.support.waiting import eventually, join

httpx = pytest.importorskip("httpx")
playwright = pytest.importorskip("playwright.sync_api", reason="the extra `clients` is not installed")

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
SCREENSHOTS = Path(os.environ.get("SCREENSHOTS", "build/screenshots"))
PRESS_ESCAPE = """() => new MutationObserver((_, observer) => {
  const text = document.querySelector("#messages li.assistant > .text");
  if (text === null || text.textContent.length < 20) return;
  observer.disconnect();
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
}).observe(document.querySelector("#messages"), { subtree: true, childList: true, characterData: true })"""
"""Presses Escape when an answer has begun; from outside it may come when a quick model has written all of it."""
LONG = "Tell me a long story about a fox."

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timing("Chromium's processes draw within the limits of its driver"),
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Any, demo_server: str) -> Iterator[Any]:
    """The page, loaded, in both colours."""
    with opened_page(browser, demo_server, request.param, request.node.originalname) as opened:
        yield opened


@contextmanager
def opened_page(browser: Any, address: str, colours: str, name: str) -> Iterator[Any]:
    """The page of a server; at its end the console has no error, and nothing came from another host."""
    context = browser.new_context(color_scheme=colours, viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    wrong: list[str] = []
    hosts: set[str] = set()
    opened.on("console", lambda message: wrong.append(message.text) if is_wrong(message) else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda asked: hosts.add("/".join(asked.url.split("/")[:3])))
    opened.goto(address)
    opened.wait_for_selector("#model option", state="attached")
    yield opened
    shot = SCREENSHOTS / f"{name}-{colours}.png"
    shot.parent.mkdir(parents=True, exist_ok=True)
    opened.screenshot(path=str(shot))
    context.close()
    assert wrong == []
    assert {host for host in hosts if not host.startswith(("data:", "blob:"))} == {address}


def is_wrong(message: Any) -> bool:
    """Whether the console says what the page should never cause; a refused request is for the page to show."""
    return message.type in ("error", "warning") and not message.text.startswith("Failed to load resource")


def ask(page: Any, text: str, answers: int = 1) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    page.wait_for_function("n => document.querySelectorAll('.facts').length >= n", arg=answers, timeout=60_000)


def test_a_chat_of_two_turns(page: Any) -> None:
    page.select_option("#model", "demo:latest")
    page.fill("#num-predict", "", force=True)
    ask(page, "Tell me a story about a fox.")
    ask(page, "And about a bear?", answers=2)
    texts = page.locator("#messages li.assistant > .text").all_text_contents()
    assert len(texts) == 2
    assert all(texts)
    assert "tokens/s" in page.locator(".facts").first.text_content()
    page.wait_for_function("() => document.querySelector('#cells-used').textContent > 0")
    assert page.evaluate("document.activeElement.id") == "prompt"


def test_an_answer_can_be_stopped(page: Any, demo_server: str) -> None:
    page.select_option("#model", "demo:latest")
    page.click("#options summary")
    page.fill("#schema", '{"type": "string", "minLength": 100000}')
    page.evaluate(PRESS_ESCAPE)
    page.fill("#prompt", LONG)
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#status').textContent === 'Stopped.'")
    page.wait_for_function("() => document.querySelector('#requests tbody').textContent === 'none'")
    # The page shows what it asked for last, which may be from before the request began.
    eventually(lambda: all(not row["running"] for row in running(demo_server)))


def running(server: str) -> list[dict[str, Any]]:
    models = httpx.get(f"{server}/page/live").json()["models"]
    return [model["metrics"] for model in models]


def test_a_picture_is_described(page: Any, tmp_path: Path) -> None:
    from PIL import Image, ImageDraw  # noqa: PLC0415

    picture = Image.new("RGB", (96, 96), (20, 20, 20))
    ImageDraw.Draw(picture).ellipse((24, 24, 72, 72), fill=(220, 30, 30))
    picture.save(tmp_path / "circle.png")
    page.select_option("#model", "demo-vision:latest")
    page.set_input_files("#file", str(tmp_path / "circle.png"))
    page.wait_for_selector("#images img")
    ask(page, "Describe the image.")
    assert "circle" in page.locator("#messages li.assistant > .text").text_content()
    page.wait_for_function("() => Number(document.querySelector('#encoded').textContent) >= 1")


def test_a_schema_makes_json(page: Any) -> None:
    import json  # noqa: PLC0415

    page.select_option("#model", "demo:latest")
    page.click("#options summary")
    page.fill("#schema", "{")
    assert "not JSON" in page.locator("#schema-error").text_content()
    schema = {"type": "object", "properties": {"animal": {"enum": ["fox", "bear"]}}, "required": ["animal"],
              "additionalProperties": False}  # fmt: skip
    page.fill("#schema", json.dumps(schema))
    ask(page, "Which animal?")
    found = json.loads(page.locator("#messages li.assistant > .text").text_content())
    assert found["animal"] in ("fox", "bear")


def test_an_error_is_shown(page: Any) -> None:
    page.route("**/api/chat", lambda route: route.continue_(post_data='{"model": 5}'))
    page.fill("#prompt", "Hi")
    page.click("#send")
    page.wait_for_selector("#messages .error")
    assert page.locator("#status").text_content() == "The answer failed."


@contextmanager
def endless_chats(server: str, n: int) -> Iterator[None]:
    """So many chats at once, of which none ends by itself; they are given up at the end of the block."""
    body = {"model": "demo", "messages": [{"role": "user", "content": LONG}],
            "format": {"type": "string", "minLength": 100_000}}  # fmt: skip
    ends = threading.Event()

    def chat() -> None:
        with httpx.stream("POST", f"{server}/api/chat", json=body, timeout=60) as answer:
            for _ in answer.iter_lines():
                if ends.is_set():
                    return

    chats = [threading.Thread(target=chat) for _ in range(n)]
    for thread in chats:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        join(*chats)


def test_sixteen_chats_are_watched(page: Any, demo_server: str) -> None:
    page.select_option("#model", "demo:latest")
    with endless_chats(demo_server, 16):
        page.wait_for_function("() => document.querySelectorAll('#requests tbody tr').length >= 16", timeout=60_000)
        page.wait_for_function("() => document.querySelector('#running').textContent === '4'")
        page.fill("#prompt", "The page answers meanwhile")
        shot = SCREENSHOTS / "sixteen-chats.png"
        shot.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(shot))
    page.wait_for_function("() => document.querySelector('#requests tbody').textContent === 'none'", timeout=60_000)


def test_right_guesses_and_all_of_them_are_shown(browser: Any, drafting: Drafting) -> None:
    counts = drafting.engine.metrics
    with opened_page(browser, drafting.address, "light", "guesses") as page:
        page.wait_for_function("() => document.querySelector('#drafts').textContent !== '0 of 0'")
        assert page.locator("#drafts").text_content() == f"{counts.accepted_tokens} of {counts.drafted_tokens}"


def test_the_first_paint_comes_within_a_second(page: Any) -> None:
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 3000, "one second on a quiet machine; tests run beside others"


def test_programs_get_ollamas_words_and_the_page_its_policy(demo_server: str) -> None:
    assert httpx.get(demo_server).text == "Ollama is running"
    answer = httpx.get(demo_server, headers={"Accept": "text/html,*/*"})
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert httpx.get(f"{demo_server}/page/..%2f..%2fapp.py").status_code == 404
    assert httpx.get(f"{demo_server}/page/nothing.js").status_code == 404


LOWER_THE_LAST = """() => {
  const row = document.querySelector("#requests tbody tr:last-child");
  const button = row?.querySelector("button[title^='Lower the priority']");
  if (!button) return false;
  window.steered = row;
  button.click();
  return true;
}"""


def test_requests_are_steered_on_the_page(page: Any, demo_server: str) -> None:
    with endless_chats(demo_server, 6):
        page.wait_for_function("() => document.querySelectorAll('#requests tbody tr').length === 6")
        page.wait_for_function(LOWER_THE_LAST)
        page.wait_for_function("() => window.steered.querySelector('.priority').textContent === '-1'")
        page.evaluate("() => window.steered.querySelector(\"button[title^='End request']\").click()")
        page.wait_for_function("() => !window.steered.isConnected")
        assert sum(row["running"] + row["queued"] for row in running(demo_server)) == 5
    page.wait_for_function("() => document.querySelector('#requests tbody').textContent === 'none'")
