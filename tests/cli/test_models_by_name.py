"""Commands with models of the store, of registries and of the Hugging Face Hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ollama_engine import demo
from ollama_engine.store import ModelStore
from tests.cli.conftest import Result
from tests.cli.typed_lines import type_lines
from tests.store.fake_registry import FakeRegistry, serving
from tests.store.layout import put_model

LIBRARY = "registry.ollama.ai/library"
GREEDY = ("--temperature", "0", "-n", "8", "-t", "1")
Cli = Callable[..., Result]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def fake(tiny: str) -> Iterator[FakeRegistry]:
    with serving() as fake:
        fake.add("me/m/latest", [("model", Path(tiny).read_bytes()), ("system", b"Be brief.")])
        yield fake


def test_commands_take_names_of_the_store(cli: Cli, root: Path) -> None:
    put_model(root, f"{LIBRARY}/story/latest", [("model", demo.path().read_bytes())])
    ours, packaged = (cli("run", model, "One day", "--raw", *GREEDY) for model in ("Story", "demo"))
    assert (ours.code, ours.out) == (0, packaged.out)
    assert json.loads(cli("show", "story", "--json").out)["architecture"] == "llama"
    assert cli("embed", "story", "a", "-t", "1").code == 0


def test_a_modelfile_stands_below_the_command_line(cli: Cli, root: Path) -> None:
    layers = [
        ("model", demo.path().read_bytes()), ("template", b"{{ .System }}|{{ .Prompt }}|"), ("system", b"One day"),
        ("params", b'{"temperature": 0, "num_predict": 3, "num_ctx": 128, "seed": -1, "stop": ["zzz"], "numa": true}'),
    ]  # fmt: skip
    put_model(root, f"{LIBRARY}/story/latest", layers)
    short, longer = cli("run", "story", "a fox", "-t", "1"), cli("run", "story", "a fox", "-n", "6", "-t", "1")
    assert (short.code, longer.code) == (0, 0), short.err + longer.err
    assert longer.out.startswith(short.out.rstrip("\n"))
    assert len(longer.out) > len(short.out)
    plain = cli("run", "demo", "One day|a fox|", "--raw", "--temperature", "0", "-n", "3", "-t", "1")
    assert short.out.strip() == plain.out.strip(), "the template has the system message and the prompt in it"
    other = cli("run", "story", "a fox", "--system", "Two nights", "-t", "1", "--verbose")
    assert "num_ctx 128" in other.err


def test_a_plan_is_that_of_run(cli: Cli, root: Path) -> None:
    """One request at a time, with the Modelfile's num_ctx. A GPU of one byte is not one of unknown size."""
    layers = [("model", demo.path().read_bytes()), ("params", b'{"num_ctx": 128}')]
    put_model(root, f"{LIBRARY}/story/latest", layers)
    known = json.loads(cli("show", "story", "--fit", "--gpu-memory", "1B", "--json").out)
    assert (known["num_ctx"], known["parallel"], known["devices"][0]["layers"]) == (128, 1, [])
    typed = json.loads(cli("show", "story", "--fit", "--num-ctx", "48", "--parallel", "2", "--json").out)
    assert (typed["num_ctx"], typed["parallel"]) == (48, 2)


def test_show(cli: Cli, root: Path) -> None:
    layers = [("model", demo.path().read_bytes()), ("template", b"{{ .Prompt }}"), ("params", b'{"seed": 1}'),
              ("system", b"Be\nbrief.")]  # fmt: skip
    digest = put_model(root, f"{LIBRARY}/story/latest", layers)
    told = [line.split(None, 1) for line in cli("show", "story").out.splitlines() if line]
    for row in (["model", f"story:latest, {digest[:12]}"], ["options", "seed 1"], ["system", "Be\\nbrief."]):
        assert row in told
    assert json.loads(cli("show", "story", "--json").out)["stored"]["system"] == "Be\nbrief."
    (root.parent / "Modelfile").write_text(cli("show", "story", "--modelfile").out)
    assert cli("create", "again", "-f", str(root.parent / "Modelfile")).code == 0
    again, story = (ModelStore(root).find(name) for name in ("again", "story"))
    for what in ("model_path", "template", "system", "parameters"):
        assert getattr(again, what) == getattr(story, what)
    assert cli("show", "demo", "--modelfile").code == 2


def test_parts_of_a_model_alone(cli: Cli, root: Path) -> None:
    layers = [("model", demo.path().read_bytes()), ("template", b"{{ .Prompt }}"), ("system", b"Be\nbrief."),
              ("params", b'{"stop": ["a", "b"]}'), ("license", b"MIT"), ("license", b"Apache")]  # fmt: skip
    put_model(root, f"{LIBRARY}/story/latest", layers)
    put_model(root, f"{LIBRARY}/plain/latest", layers[:1])
    assert cli("show", "story", "--template").out == "{{ .Prompt }}\n"
    assert "start_header_id" in cli("show", "plain", "--template").out, "the file's own"
    assert cli("show", "story", "--system").out == "Be\nbrief.\n"
    assert cli("show", "plain", "--system").out == "\n"
    assert [line.split() for line in cli("show", "story", "--parameters").out.splitlines()] == [
        ["stop", '"a"'], ["stop", '"b"'],
    ]  # fmt: skip
    assert cli("show", "story", "--license").out == "MIT\n\nApache\n"
    refused = cli("show", "demo", "--template")
    assert (refused.code, "--template has no effect" in refused.err) == (2, True)
    with_both = cli("show", "story", "--template", "--system")
    assert (with_both.code, "not allowed with" in with_both.err) == (2, True)


def test_adapters_are_refused(cli: Cli, root: Path) -> None:
    put_model(root, f"{LIBRARY}/lora/latest", [("model", demo.path().read_bytes()), ("adapter", b"GGUF")])
    refused = cli("run", "lora", "x")
    assert (refused.code, "has an adapter (LoRA), which this engine does not apply" in refused.err) == (1, True)


def test_names_that_are_not_there(cli: Cli, root: Path) -> None:
    put_model(root, f"{LIBRARY}/llama3.2/latest", [("model", b"GGUF")])
    assert "did you mean llama3.2?" in cli("run", "lama3.2", "x").err
    told = cli("run", "qwen3", "x").err
    assert "a name that ollama-engine list shows; ollama-engine pull qwen3 downloads it" in told


def test_pull_and_push(cli: Cli, root: Path, fake: FakeRegistry) -> None:
    name = f"{fake.host}/me/m"
    assert cli("pull", name, "--insecure") == Result(0, f"pulled {name}:latest\n", "")
    assert ModelStore(root).find(name).system == "Be brief."
    assert cli("run", name, "a", "--raw", *GREEDY).code == 0
    missing = cli("pull", f"{fake.host}/me/other", "--insecure")
    assert (missing.code, "me/other:latest' not found" in missing.err) == (1, True)
    assert cli("pull", f"http://{name}").code == 2
    assert cli("push", f"http://{name}").code == 2
    assert cli("push", "hf.co/a/b").code == 2
    assert "not found" in cli("push", f"{fake.host}/me/nothing", "--insecure").err


def test_transfer_streams(cli: Cli, root: Path, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MAX_TRANSFER_STREAMS", " '1' ")
    assert cli("pull", f"{fake.host}/me/m", "--insecure").code == 0
    monkeypatch.setenv("OLLAMA_MAX_TRANSFER_STREAMS", "many")
    assert cli("pull", f"{fake.host}/me/m", "--insecure").code == 2


def test_names_of_the_hub_are_downloaded(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(store: ModelStore, model: str, *, insecure: bool) -> None:
        assert (model, insecure) == ("hf.co/org/repo:Q8_0", False)
        put_model(store.folder, "hf.co/org/repo/Q8_0", [("model", demo.path().read_bytes())])

    monkeypatch.setattr("ollama_engine.cli.transfers.pull_model", pull)
    first = cli("run", "hf.co/org/repo:Q8_0", "One day", "--raw", *GREEDY)
    assert first.code == 0
    assert first.err == f"hf.co/org/repo:Q8_0 is not in the store yet: downloading it to {root}\n"
    assert cli("run", "hf.co/org/repo:Q8_0", "One day", "--raw", *GREEDY) == Result(0, first.out, "")


def test_create(cli: Cli, root: Path, tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(Path(tiny).read_bytes())
    lines = ("FROM ./tiny.gguf", "SYSTEM Be brief.", "PARAMETER stop a", "PARAMETER stop b", "PARAMETER num_ctx 64",
             "PARAMETER use_mmap false", "MESSAGE user hi", "RENDERER x", "LICENSE L")  # fmt: skip
    (folder / "Modelfile").write_text("\n".join(lines))
    assert cli("create", "mine", "-f", str(folder / "Modelfile")) == Result(0, "created mine:latest\n", "")
    found = ModelStore(root).find("mine")
    assert found.parameters == {"stop": ["a", "b"], "num_ctx": 64, "use_mmap": False}
    assert (found.system, found.licenses, found.config["renderer"]) == ("Be brief.", ("L",), "x")
    assert found.messages == ({"role": "user", "content": "hi"},)
    (folder / "Modelfile").write_text("FROM mine\nSYSTEM New.")
    assert cli("create", "other", "-f", str(folder / "Modelfile")).code == 0
    assert ModelStore(root).find("other").system == "New."
    (folder / "Modelfile").write_text("FROM demo")
    assert cli("create", "story", "-f", str(folder / "Modelfile")).code == 0
    assert ModelStore(root).find("story").model_path.read_bytes() == demo.path().read_bytes()


@pytest.mark.parametrize(("text", "told"), [
    ("SYSTEM x", "Modelfile: a Modelfile says FROM"), ("FROM demo\nSISTEM x", "line 2: a command is one of"),
    ("FROM ~nobody2/x.gguf", "~nobody2/x.gguf: FROM names no file that is there"),
    ("FROM demo\nADAPTER ~nobody2/x.gguf", "ADAPTER names no file that is there"),
    ("FROM ./nothing.gguf", "./nothing.gguf: FROM names no file that is there"),
    ("FROM demo\nPARAMETER num_ctx x", "PARAMETER num_ctx must be of type integer, got 'x'"),
    ("FROM demo\nPARAMETER nothing x", "unknown parameter 'nothing'"),
    ("FROM demo\nADAPTER ./nothing", "ADAPTER names no file that is there"),
])  # fmt: skip
def test_modelfiles_that_are_refused(cli: Cli, root: Path, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "Modelfile").write_text(text)
    refused = cli("create", "x", "-f", str(tmp_path / "Modelfile"))
    assert refused.code != 0
    assert told in refused.err
    assert not (root / "manifests").exists()


def test_a_modelfile_that_is_not_there_and_one_with_a_fault(
    cli: Cli, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = cli("create", "x")
    assert missing.err.startswith("error: Modelfile: No such file or directory; a Modelfile says how")
    Path("Modelfile").write_text("FRUM demo")
    assert cli("create", "x").err.startswith("error: Modelfile, line 1: a command is one of")


def test_run_pulls_what_is_not_there(cli: Cli, root: Path, fake: FakeRegistry) -> None:
    name = f"{fake.host}/me/m"
    refused = cli("run", name, "a", "--raw", *GREEDY)
    assert (refused.code, "ollama-engine pull" in refused.err) == (1, True)
    first = cli("run", name, "a", "--raw", "--pull", "--insecure", *GREEDY)
    assert (first.code, first.err) == (0, f"{name}:latest is not in the store yet: downloading it to {root}\n")
    assert cli("run", name, "a", "--raw", "--pull", *GREEDY) == Result(0, first.out, "")


@pytest.mark.parametrize(("typed", "pulls"), [("y", True), ("n", False), ("", False), (EOFError(), False)])
def test_run_asks_whether_to_pull(
    cli: Cli, root: Path, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch, typed: str | BaseException, pulls: bool
) -> None:
    """Where somebody sits at a terminal; what is a path is a file that is missing."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, fileno=lambda: 0))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    left = type_lines(monkeypatch, [typed])
    assert "Pull it" not in cli("run", "./nothing.gguf", "a").err
    asked = cli("run", f"{fake.host}/me/m", "a", "--raw", "--insecure", *GREEDY)
    assert f"me/m:latest is not in the store. Pull it from {fake.host}? [y/N] " in asked.err
    assert (asked.code == 0, bool(ModelStore(root).entries())) == (pulls, pulls)
    assert next(left, None) is None
