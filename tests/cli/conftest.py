from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from ollama_engine.cli.main import main
from tests.support.tiny import write_tiny_llama


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random llama of 4096 tokens whose end tokens are 318 and 319."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=4096).path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs the program in this process."""
    monkeypatch.delenv("OLLAMA_ENGINE_LOG", raising=False)

    def run(*args: str) -> Result:
        capsys.readouterr()
        try:
            code = main(args)
        except SystemExit as leave:
            code = leave.code
        assert isinstance(code, int)
        return Result(code, *capsys.readouterr())

    log = logging.getLogger("ollama_engine")
    handlers, level = list(log.handlers), log.level
    yield run
    assert (log.handlers, log.level) == (handlers, level), "the program leaves logging as it was"
