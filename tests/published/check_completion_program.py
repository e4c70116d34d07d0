"""Do llama.cpp's program and its library, which made the goldens, give the same answers?

    python -m tests.published.check_completion_program PUBLISHED.gguf

needs llama.cpp (`python bench/peers.py build`). It asks `llama-completion` all prompts of smollm2_prompts.py, with the
F32 file that `llama-quantize` makes, f32 keys and values and without flash attention, and compares texts. It takes
minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.peer_tools import tool
from ollama_engine import Engine
from tests.published.make_smollm2_goldens import GOLDENS, MOST, N_CTX, THREADS
from tests.published.smollm2_prompts import PROMPTS

END_MARK = " [end of text]"


def completion(program: Path, model: Path, prompt: str) -> str:
    """What the program prints behind a prompt, without the mark that it prints at an end token."""
    command = [
        program, "-m", model, "-p", prompt, "--no-escape", "-n", MOST, "--temp", 0, "-t", THREADS, "-c", N_CTX,
        "-fa", "off", "-ctk", "f32", "-ctv", "f32", "-no-cnv", "--no-display-prompt", "--no-warmup", "--simple-io",
    ]  # fmt: skip
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, stdin=subprocess.DEVNULL)
    text = done.stdout.decode(errors="replace")
    return text.split(END_MARK)[0].removesuffix("\n\n") if END_MARK in text else text.removesuffix("\n\n")


def main() -> None:
    """Print how many answers agree, and those that do not; exit with 1 if there are any."""
    published = Path(sys.argv[1])
    program = tool("llama-completion")
    tokens = np.load(GOLDENS)["f32"].view(np.uint16)
    differing = 0
    with tempfile.TemporaryDirectory() as folder, Engine(published, num_ctx=64, threads=1) as engine:
        exact = Path(folder) / "f32.gguf"
        command = [str(tool("llama-quantize")), "--allow-requantize", str(published), str(exact), "F32"]
        subprocess.run(command, check=True, capture_output=True)
        for i, prompt in enumerate(PROMPTS):
            expected = engine.detokenize([int(id_) for id_ in tokens[i] if id_ != 0xFFFF])
            found = completion(program, exact, prompt)
            if found.strip() != expected.strip():
                differing += 1
                print(f"{i}: {expected!r}\n   {found!r}")
            print(f"\r{i + 1} of {len(PROMPTS)}", end="", file=sys.stderr, flush=True)
    print(f"\n{len(PROMPTS) - differing} of {len(PROMPTS)} answers are the same")
    raise SystemExit(differing > 0)


if __name__ == "__main__":
    main()
