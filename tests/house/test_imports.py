"""What is imported, and above all what is not, until somebody needs it: a process is to reach its first token soon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 60

# Each takes a millisecond at least, some ten; none is needed to load a model and answer.
HEAVY = (
    "asyncio",
    "concurrent.futures",
    "email",
    "hashlib",
    "importlib.metadata",
    "json",
    "multiprocessing",
    "random",
    "secrets",
    "shutil",
    "socket",
    "ssl",
    "PIL",
    "subprocess",
    "tempfile",
    "unittest",
    "zipfile",
)


FOR_SOME_MODELS = (
    "kvcache.cross_attention",
    "runner.load.model_info",
    "tokenizer.unigram",
)
"""Or for some questions, to a model that answers."""


SERVER = ("fastapi", "starlette", "uvicorn", "httpx", "prometheus_client", "huggingface_hub")
"""What the extra `server` brings."""


def imported_after(script: str) -> set[str]:
    """Names of the modules that a fresh process has after a script, without what Python starts with."""
    lines = (
        "import sys",
        "before = set(sys.modules)",
        script,
        "after = set(sys.modules) - before",
        "import json",
        "print('\\n' + json.dumps(sorted(after)))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(json.loads(done.stdout.splitlines()[-1]))


def program(*arguments: str) -> str:
    return f"""
from ollama_engine.cli.main import main
try:
    main({list(arguments)!r})
except SystemExit:
    pass
"""


def test_the_engine_is_imported_without_what_only_some_callers_need() -> None:
    found = imported_after("from ollama_engine import Engine, SamplingParams")
    assert "ollama_engine.runner.load.loading" in found
    assert not found & {*HEAVY, "pathlib", "regex"}
    assert not found & {
        "ollama_engine.runner.request.astream",
        "ollama_engine.runner.session.session",
        "ollama_engine.convert",
    }


def test_a_model_answers_without_them_too() -> None:
    found = imported_after(
        "from ollama_engine import Engine, SamplingParams, demo\n"
        "with Engine(demo.path(), num_ctx=64, parallel=1, threads=1) as engine:\n"
        "    engine.generate([1, 2, 3], SamplingParams(max_tokens=2))"
    )
    assert "ollama_engine.models.llama" in found
    # demo.path() is a Path.
    assert not found & {*HEAVY, "regex"}
    assert not found & {f"ollama_engine.{name}" for name in FOR_SOME_MODELS}


def test_the_thread_of_an_engine_imports_nothing(tmp_path: Path) -> None:
    """An interrupt in an import may leave the interpreter's lock for imports taken: who imports then waits for ever.

    That ends with the caller's thread, as long as the engine's has all that it needs.
    """
    file = str(tmp_path / "saved")
    imported_after(f"""
import sys, threading
class OnThreads:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            raise ImportError(name)
sys.meta_path.insert(0, OnThreads())
from ollama_engine import Engine, SamplingParams, demo
with Engine(demo.path(), num_ctx=64, parallel=2, threads=1) as engine:
    engine.generate([[1, 2], [3]], SamplingParams(max_tokens=4, logprobs=2, seed=1, stop=["x"]), n=2)
    engine.generate([1, 2, 3] * 16, SamplingParams(max_tokens=40), on_overflow="shift")
    engine.logits([1, 2, 3])
    with engine.session() as session:
        session.append([1, 2, 3])
        session.fork().close()
        session.save({file!r})
    engine.load_session({file!r}).close()
    engine.embed([[1, 2, 3] * 20] * 8)
""")


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_the_program_says_what_it_is_without_any_command(argument: str) -> None:
    found = imported_after(program(argument))
    ours = {name for name in found if name.startswith("ollama_engine.")}
    rooms = ("cli", "cli.errors", "cli.logs", "cli.main", "cli.numbers", "cli.streams", "errors", "lazy")
    assert ours == {f"ollama_engine.{name}" for name in rooms}
    # argparse takes the width of the terminal from shutil.
    assert not found & ({*HEAVY, "dataclasses", "numpy", "pathlib", "regex"} - {"shutil"})


@pytest.mark.parametrize("command", ["chat.run", "chat.embed", "measure.devices"])
def test_the_options_of_a_command_are_told_without_an_engine(command: str) -> None:
    found = imported_after(program(command.partition(".")[2], "--help"))
    assert f"ollama_engine.cli.{command}" in found
    runner = {name for name in found if name.startswith("ollama_engine.runner")}
    light = ("", ".request", ".request.options", ".request.reasoning")
    assert runner <= {f"ollama_engine.runner{name}" for name in light}
    assert not {name for name in found if name.startswith(("numpy", "ollama_engine.ml"))}
    assert "ollama_engine.engine" not in found


def test_one_prompt_and_one_answer_are_measured_without_the_engine() -> None:
    """As llama-bench does; random tokens need no generator of numpy's, which would look for entropy."""
    arguments = ("bench", "demo", "-p", "1", "-n", "1", "-r", "1", "--threads", "1")
    found = imported_after(program(*arguments))
    assert "ollama_engine.cli.measure.bench.parts" in found
    assert not found & {*HEAVY, "numpy.random", "ollama_engine.engine", "statistics"} - {"json", "shutil"}


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE)  # every test module is imported
def test_tests_that_need_the_extra_server_are_skipped_without_it() -> None:
    """One that cannot even be imported ends the whole run."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.house.lacking", *SERVER], capture_output=True, text=True, check=False,
        timeout=3 * PATIENCE - 10, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == {}
    assert found["skipped"] > 5
    assert found["imported"] > 300
