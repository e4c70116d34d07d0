"""llama.cpp's ids, greedy answers and embeddings of Gemma 3 270M, for the texts of gemma3_texts.py.

    python -m tests.published.make_gemma3_goldens PUBLISHED.gguf

needs llama.cpp (`python bench/peers.py build`): llama-quantize makes the F32 file, and its library answers, with
f32 keys and values and without flash attention. Takes minutes. It refuses prompts whose F32 answer has two tokens that
are nearly as likely, so that tests can ask for the same tokens without an exception.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.peer_llama import MISSING, Llama, find
from bench.peer_tools import tool
from tests.published.gemma3_texts import LANGUAGES, PROMPTS, long_text

MOST, THREADS = 24, 1
N_WORDS = 1500
LONG = {"past 512": 700, "past 2048": 2200}
"""Tokens of prompts that are longer than the window, and than four of them."""
LONG_CTX, LONG_MOST, LONG_WORDS = 2304, 8, 4000
PERPLEXITY_CTX, N_CHUNKS = 768, 2
EMBEDDED = ("The cat sits on the mat.", LANGUAGES["Japanese"])
LEAST_LEAD = 0.01
"""Nats by which each token of an F32 answer leads at least: sums in another order move leads by less."""
BOS = 2
GOLDENS = Path(__file__).parent / "gemma3_goldens.npz"


def digest(ids: np.ndarray) -> str:
    """Of token ids, as 32-bit integers in little-endian order."""
    return hashlib.sha256(np.asarray(ids, "<i4").tobytes()).hexdigest()


def perplexity_text() -> str:
    return "\n\n".join([*LANGUAGES.values(), long_text("English", N_WORDS)])


def _ids(llama: Llama, model: int, text: str) -> np.ndarray:
    """Without BOS."""
    ids = np.empty(1 << 16, np.int32)
    return ids[: llama.tokenize(model, text.encode(), ids)].copy()


def _tokens(llama: Llama, path: Path) -> dict[str, np.ndarray]:
    """Greedy answers [prompts, MOST], -1 behind the end, with the gaps; and those to long prompts."""
    tokens, gaps = np.full((len(PROMPTS), MOST), -1, np.int32), np.zeros((len(PROMPTS), MOST), np.float32)
    found = {}
    with llama.model(str(path)) as model:
        with llama.exact_context(model, 256, THREADS) as context:
            for i, prompt in enumerate(PROMPTS):
                ids = np.r_[BOS, _ids(llama, model, prompt)].astype(np.int32)
                answer, ahead = llama.greedy(context, model, ids, MOST)
                tokens[i, : len(answer)], gaps[i, : len(answer)] = answer, ahead
        with llama.exact_context(model, LONG_CTX, THREADS) as context:
            text = np.r_[BOS, _ids(llama, model, long_text("English", LONG_WORDS))].astype(np.int32)
            for name, n in LONG.items():
                answer, ahead = llama.greedy(context, model, text[:n].copy(), LONG_MOST)
                found[name], found[f"{name}_gaps"] = np.array(answer, np.int32), np.array(ahead, np.float32)
    return {"tokens": tokens, "gaps": gaps, **found}


def _refuse_ties(found: dict[str, np.ndarray]) -> None:
    leads = np.where(found["tokens"] >= 0, found["gaps"], np.inf).min(axis=1)
    near = [PROMPTS[i] for i in np.flatnonzero(leads < LEAST_LEAD)]
    near += [name for name in LONG if found[f"{name}_gaps"].min() < LEAST_LEAD]
    if near:
        raise SystemExit(f"take other prompts instead of {near}: a token leads by less than {LEAST_LEAD} nats")


def _perplexity(path: Path, text: Path) -> float:
    command = [str(tool("llama-perplexity")), "-m", str(path), "-f", str(text), "-c", str(PERPLEXITY_CTX),
               "-b", str(PERPLEXITY_CTX), "--chunks", str(N_CHUNKS), "-fa", "off", "-ctk", "f32", "-ctv", "f32",
               "-t", str(THREADS), "--no-escape"]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    said = done.stdout + done.stderr
    return float(said.split("Final estimate: PPL = ")[1].split()[0])


def _embeddings(path: Path) -> np.ndarray:
    """Mean of the hidden states, as they are: float32 [texts, n_embd]."""
    rows = []
    for text in EMBEDDED:
        command = [str(tool("llama-embedding")), "-m", str(path), "-p", text, "--pooling", "mean", "--embd-normalize",
                   "-1", "--embd-output-format", "json", "-fa", "off", "-t", str(THREADS), "-c", "512"]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout)["data"][0]["embedding"])
    return np.array(rows, np.float32)


def main() -> None:
    """Write the goldens."""
    published = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        llama = find(Path(folder))
        if llama is None:
            raise SystemExit(MISSING)
        exact, text = Path(folder) / "f32.gguf", Path(folder) / "text.txt"
        text.write_text(perplexity_text(), encoding="utf-8")
        command = [str(tool("llama-quantize")), "--allow-requantize", str(published), str(exact), "F32"]
        subprocess.run(command, check=True, capture_output=True)
        found: dict[str, np.ndarray] = {}
        with llama.model(str(published), vocab_only=True) as model:
            ids = {language: _ids(llama, model, long_text(language, N_WORDS)) for language in LANGUAGES}
        found["digests"] = np.array([digest(ids[language]) for language in LANGUAGES])
        found["counts"] = np.array([len(ids[language]) for language in LANGUAGES])
        for kind, path in (("f32", exact), ("published", published)):
            answered = _tokens(llama, path)
            if kind == "f32":
                _refuse_ties(answered)
            found |= {f"{kind}.{name}": values for name, values in answered.items()}
            found[f"{kind}.perplexity"] = np.array(_perplexity(path, text))
            print(kind, found[f"{kind}.perplexity"], file=sys.stderr)
        found["f32.embeddings"] = _embeddings(exact)
    np.savez_compressed(GOLDENS, **found)


if __name__ == "__main__":
    main()
