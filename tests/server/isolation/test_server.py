"""A server whose models have processes of their own, asked over HTTP while one of them crashes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from ollama_engine.server.app import create_app
from ollama_engine.server.isolation.remote_model import RemoteModel
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running

OPTIONS = {"num_ctx": 128, "num_thread": 1, "temperature": 0}


@pytest.mark.slow
def test_a_crash_is_an_error_of_its_own_request(tmp_path: Path) -> None:
    app = create_app(ServerSettings(models=tmp_path, isolation="process", num_parallel=2))

    def body(**given: Any) -> dict[str, Any]:
        options = {**OPTIONS, **given.pop("options", {})}
        return {"model": "demo", "prompt": "Once upon a time", "options": options, **given}

    with running(app) as url, httpx.Client(base_url=url, timeout=120) as client:
        short = body(stream=False, options={"num_predict": 4})
        first = client.post("/api/generate", json=short).json()["response"]
        endless = body(options={"num_predict": 1000, "temperature": 2.0})
        with client.stream("POST", "/api/generate", json=endless) as response:
            lines = response.iter_lines()
            assert not json.loads(next(lines))["done"]
            (row,) = app.state.service.manager.loaded()
            assert isinstance(row.model, RemoteModel)
            os.kill(row.model.process.pid, signal.SIGKILL)
            *_, last = lines
        assert response.status_code == 200
        assert "the process of model 'demo:latest' was ended by SIGKILL" in json.loads(last)["error"]
        again = client.post("/api/generate", json=short)
        assert (again.status_code, again.json()["response"]) == (200, first)
        assert [row["name"] for row in client.get("/api/ps").json()["models"]] == ["demo:latest"]
