"""llama.cpp's greedy answers to the prompts of smollm2_prompts.py.

    python -m tests.published.make_smollm2_goldens PUBLISHED.gguf

needs llama.cpp (`python bench/peers.py build`): llama-quantize makes the F32 file, and its library answers, with
f32 keys and values and without flash attention. Takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.peer_llama import MISSING, Llama, find
from bench.peer_tools import tool
from tests.published.smollm2_prompts import PROMPTS, chat

MOST, N_CTX, THREADS = 32, 512, 1
LONG_CTX, LONG_KEEP, LONG_TOKENS = 256, 16, 700
LONG_PROMPT = chat(("user", "Tell me a long story about a dragon and a knight."))
GOLDENS = Path(__file__).parent / "smollm2_goldens.npz"


def answers(llama: Llama, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int16 [prompts, MOST], -1 behind the end, and gaps float16."""
    tokens = np.full((len(PROMPTS), MOST), -1, np.int32)
    gaps = np.zeros((len(PROMPTS), MOST), np.float32)
    ids = np.empty(N_CTX, np.int32)
    with llama.model(str(path)) as model, llama.exact_context(model, N_CTX, THREADS) as context:
        for i, prompt in enumerate(PROMPTS):
            n = llama.tokenize(model, prompt.encode(), ids, parse_special=True)
            found, ahead = llama.greedy(context, model, ids[:n].copy(), MOST)
            tokens[i, : len(found)], gaps[i, : len(found)] = found, ahead
            print(f"\r{path.name}: {i + 1} of {len(PROMPTS)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return tokens.astype(np.uint16).view(np.int16), gaps.astype(np.float16)


def long_answer(llama: Llama, path: Path) -> np.ndarray:
    """Tokens int16 of an answer that goes on through several shifts of a small context."""
    ids = np.empty(N_CTX, np.int32)
    with llama.model(str(path)) as model, llama.exact_context(model, LONG_CTX, THREADS) as context:
        n = llama.tokenize(model, LONG_PROMPT.encode(), ids, parse_special=True)
        found, _ = llama.greedy(context, model, ids[:n].copy(), LONG_TOKENS, LONG_KEEP)
    assert len(found) == LONG_TOKENS, "it does not end by itself"
    return np.array(found, np.uint16).view(np.int16)


def main() -> None:
    """Write the goldens."""
    published = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        llama = find(Path(folder))
        if llama is None:
            raise SystemExit(MISSING)
        exact = Path(folder) / "f32.gguf"
        command = [str(tool("llama-quantize")), "--allow-requantize", str(published), str(exact), "F32"]
        subprocess.run(command, check=True, capture_output=True)
        q4_1_tokens, q4_1_gaps = answers(llama, published)
        f32_tokens, f32_gaps = answers(llama, exact)
        shifted = long_answer(llama, exact)
    np.savez_compressed(
        GOLDENS, f32=f32_tokens, f32_gaps=f32_gaps, q4_1=q4_1_tokens, q4_1_gaps=q4_1_gaps, shifted=shifted
    )


if __name__ == "__main__":
    main()
