from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ollama_engine import demo
from ollama_engine.cli.tables import ago
from tests.cli.conftest import Result
from tests.store.layout import files, put_model

LIBRARY = "registry.ollama.ai/library"
PACKAGED = [["demo", "(packaged)"], ["demo-vision", "(packaged)"]]
"""The last lines of `list`."""
Cli = Callable[..., Result]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", f'  "{tmp_path}" ')
    return tmp_path


def test_list(cli: Cli, root: Path) -> None:
    assert cli("list").out == cli("ls").out
    now = time.time()
    digest = put_model(root, f"{LIBRARY}/llama3.2/latest", [("model", b"x" * 12_345)], {}, modified=now - 3 * 86400 - 5)
    put_model(root, "hf.co/org/repo/Q4_K_M", [("model", b"x" * 12_345)], {}, modified=now - 61)
    lines = cli("list").out.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["hf.co/org/repo:Q4_K_M", digest[:12], "12", "KB", "1", "minute", "ago"],
        ["llama3.2:latest", digest[:12], "12", "KB", "3", "days", "ago"],
    ]
    assert len({line.index(word) for line, word in zip(lines, ("ID", digest[:12], digest[:12]), strict=False)}) == 1
    assert [line.split()[0] for line in cli("list", "LLAMA").out.splitlines()] == ["NAME", "llama3.2:latest"]
    (found,) = json.loads(cli("list", "llama", "--json").out)
    assert (found["name"], found["digest"], found["size"]) == ("llama3.2:latest", digest, 12_347)
    assert found["packaged"] is False


def test_list_shows_the_packaged_models_by_names_that_can_be_typed(cli: Cli, root: Path) -> None:
    """Also where the store has a model of such a name, which its tag means then."""
    assert [line.split()[:2] for line in cli("list").out.splitlines()[1:]] == PACKAGED
    put_model(root, f"{LIBRARY}/demo/latest", [("model", demo.vision_path().read_bytes())])
    listed = json.loads(cli("list", "DEMO", "--json").out)
    assert [(facts["name"], facts["packaged"]) for facts in listed] == [
        ("demo:latest", False), ("demo", True), ("demo-vision", True),
    ]  # fmt: skip
    assert [facts["size"] for facts in listed[1:]] == [demo.path().stat().st_size, demo.vision_path().stat().st_size]
    shown = [json.loads(cli("show", facts["name"], "--json").out)["architecture"] for facts in listed]
    assert shown == ["gemma3", "llama", "gemma3"]
    assert cli("rm", "demo").code == 0
    assert json.loads(cli("show", "demo:latest", "--json").out)["architecture"] == "llama", "as servers name it"


def test_list_tells_of_damage(cli: Cli, root: Path) -> None:
    path = root / "manifests" / LIBRARY / "bad" / "latest"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no")
    told = cli("list")
    assert told.err == f"warning: {path} cannot be read; ollama-engine doctor says why\n"
    assert [line.split()[:2] for line in told.out.splitlines()[1:]] == PACKAGED


def test_cp_and_rm(cli: Cli, root: Path) -> None:
    put_model(root, f"{LIBRARY}/a/latest", [("model", b"x")])
    assert cli("cp", "a", "me/b:v2").out == "copied a:latest to me/b:v2\n"
    assert cli("rm", "a").out == "deleted a:latest\n"
    assert [line.split()[0] for line in cli("list").out.splitlines()] == [
        "NAME", "me/b:v2", "demo", "demo-vision",
    ]  # fmt: skip
    assert cli("rm", "me/b:v2", "--unused").out == "deleted me/b:v2\nremoved 0 unused files, 0 bytes\n"
    assert files(root) == set()


NO_MODEL = "model 'a:latest' not found; ollama-engine list shows the models of the store"


def test_mistakes(cli: Cli, root: Path) -> None:
    assert cli("rm", "a") == Result(1, "", f"error: {NO_MODEL}\n")
    assert cli("cp", "a", "b") == Result(1, "", f"error: {NO_MODEL}\n")
    assert "got '../a'" in cli("cp", "a", "../a").err
    assert cli("rm", "demo") == Result(2, "", "error: demo:latest comes with the package, and cannot be removed\n")
    packaged = cli("cp", "demo", "mine")
    assert (packaged.code, "says FROM demo, and call ollama-engine create mine" in packaged.err) == (2, True)
    nothing = cli("rm")
    assert (nothing.code, "there is no NAME" in nothing.err) == (2, True)


def test_words() -> None:
    times = (0, 1, 59, 60, 3600, 90_000, 8 * 86400, 40 * 86400, 800 * 86400)
    assert [ago(seconds) for seconds in times] == [
        "now", "1 second ago", "59 seconds ago", "1 minute ago", "1 hour ago", "1 day ago", "1 week ago",
        "1 month ago", "2 years ago",
    ]  # fmt: skip
