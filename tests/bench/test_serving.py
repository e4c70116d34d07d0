"""bench/serving.py: what llama-benchy's events say, the table, the picture; servers that are not here are named."""

from __future__ import annotations

import json
import math
import threading
import xml.etree.ElementTree as ET
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bench import benchy, servers, serving, serving_picture
from ollama_engine import Engine, demo
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import join


def event(kind: str, request: int, ts: float, **fields: object) -> dict[str, object]:
    return {"type": kind, "request_id": request, "ts": ts, **fields}


EVENTS = [
    {"type": "header", "ts": 0.0},
    event("request_start", 0, 10.0, run_index=0),
    event("request_start", 1, 10.0, run_index=0),
    event("request_first_token", 0, 10.5, ttft_s=0.5),
    event("tokens", 0, 10.5, count=1),
    event("request_end", 1, 10.6, total_tokens=0, error="HTTP 503: full"),
    event("tokens", 0, 10.7, count=1),
    event("tokens", 0, 11.1, count=2),
    event("request_end", 0, 11.2, total_tokens=4, error=""),
    event("request_start", 2, 20.0, run_index=1),
    event("request_first_token", 2, 20.1, ttft_s=0.1),
    event("tokens", 2, 20.1, count=1),
    event("request_end", 2, 20.1, total_tokens=1, error=""),
    {"type": "bench_complete", "ts": 21.0},
]


def test_runs_are_read_from_events() -> None:
    first, second = benchy.read_events(EVENTS)
    assert (first.requests, first.tokens, first.first, first.errors) == (2, 4, [0.5], ["HTTP 503: full"])
    assert first.seconds == pytest.approx(1.2)
    assert first.gaps == pytest.approx([0.2, 0.4])
    assert first.per_token == pytest.approx([0.6 / 3]), "four tokens in three pieces: three times between them"
    assert (second.requests, second.tokens, second.gaps, second.per_token) == (1, 1, [], [])


def test_a_row_has_quantiles_of_all_rounds_and_the_share_of_success() -> None:
    seen = benchy.read_events(EVENTS)
    seen[0].answer_tps, seen[1].answer_tps = 30.0, 10.0
    made = serving.row("ollama_engine", 2, seen)
    assert (made.first_p50, made.first_p99, made.answer_tps) == (100.0, 500.0, 20.0)
    assert made.success == pytest.approx(2 / 3)
    text = serving.table([made], {"llama-server": "not built"})
    assert "| 2 | ollama_engine | 0 | 20 |" in text
    assert "| 67% |" in text
    assert "- ollama_engine, 2 clients: HTTP 503: full" in text
    assert text.endswith("- llama-server is left out: not built")


def test_quantiles() -> None:
    assert [serving.quantile(range(1, 101), q) for q in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert math.isnan(serving.quantile([], 0.5))


def test_a_server_that_is_not_built_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "has_tool", lambda _: False)
    assert "peers.py build" in servers.missing("llama-server")
    assert servers.missing("ollama_engine") == ""


def test_all_slots_of_a_peer_get_what_the_longest_holds() -> None:
    asked: list[tuple[str, str]] = []
    lengths = {"0": 3, "1": 7800, "2": 0}

    class Slots(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            number, action = self.path.removeprefix("/slots/").split("?action=")
            file = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["filename"]
            asked.append((number, f"{action} {file}"))
            body = json.dumps({"n_saved": lengths[number], "n_restored": 7800}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Slots) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.share_prefix("ollama_engine", server.server_port, 3)
        assert asked == []
        servers.share_prefix("llama-server", server.server_port, 3)
        server.shutdown()
        join(thread)
    assert asked == [(str(i), f"save {i}.slot") for i in range(3)] + [("0", "restore 1.slot"), ("2", "restore 1.slot")]


def test_the_tokenizer_is_that_of_the_file(tmp_path: Path) -> None:
    text = "Once upon a time there was a fox."
    benchy.write_tokenizer(demo.path(), tmp_path)
    ids = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids
    with Engine("demo") as engine:
        assert engine.tokenize(text, add_special=False) == ids


def test_another_kind_of_vocabulary_is_refused(tmp_path: Path) -> None:
    file = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1, metadata={"tokenizer.ggml.model": "llama"})
    with pytest.raises(SystemExit, match="byte-level BPE"):
        benchy.write_tokenizer(Path(file.path), tmp_path)


def test_the_picture_shows_every_value(tmp_path: Path) -> None:
    rows = [
        {"server": name, "clients": n, "answer_tps": 10 * n, "first_p50": 20 * n, "first_p99": 90 * n, "token_p50": 3,
         "token_p99": 7}
        for name in servers.NAMES for n in (1, 4, 16)
    ]  # fmt: skip
    root = ET.fromstring(serving_picture.draw(json.loads(json.dumps(rows))))
    svg = "{http://www.w3.org/2000/svg}"
    lines = [line.get("points", "").split() for line in root.iter(f"{svg}polyline")]
    assert [len(points) for points in lines] == [3] * (2 * (1 + 2 + 2))
    width, height = (float(number) for number in root.get("viewBox", "").split()[2:])
    for x, y in (point.split(",") for points in lines for point in points):
        assert 0 <= float(x) <= width
        assert 0 <= float(y) <= height
    assert "prefers-color-scheme: dark" in "".join(root.itertext())
