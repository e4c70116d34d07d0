"""Write goldens.json with llama-quantize: `python -m tests.convert.quant.make_goldens`.

`make test-peers` builds llama-quantize from the pinned sources and compares with it live; LLAMA_QUANTIZE=PATH names
another one.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from ollama_engine.convert.quant.presets import PRESETS
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.convert.quant.golden import (
    GOLDENS,
    PEER,
    WEIGHTS,
    peer,
    summary,
    tensor_hash,
    write_small_imatrix,
    write_small_model,
)
from tests.convert.quant.shells import SHELLS


def quantize(program: str, source: Path, target: Path, preset: str, *options: str) -> None:
    """One run of the peer. Q2_K_S wants an importance matrix, and gets none here."""
    command = [program, *options, str(source), str(target), preset, "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")


def types_of(path: Path) -> dict[str, str]:
    with GGUFFile(path) as file:
        return {tensor.name: tensor.dtype for tensor in file.tensors.values()}


def main() -> None:
    program = peer()
    if program is None:
        raise SystemExit(f"{PEER} names no llama-quantize")
    types, hashes = {}, {}
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        for shell in SHELLS:
            source = shell.write(folder / f"{shell.name}.gguf")
            for preset in PRESETS:
                if preset not in ("F32", "Q2_K_S"):
                    quantize(program, source, folder / "out.gguf", preset)
                    types[f"{shell.name} {preset}"] = summary(types_of(folder / "out.gguf"))
        model = Path(write_small_model(folder / "small.gguf"))
        imatrix = write_small_imatrix(folder / "imatrix.dat", str(model))
        for preset in WEIGHTS:
            for label, options in (("", ()), (" imatrix", ("--imatrix", str(imatrix)))):
                quantize(program, model, folder / "out.gguf", preset, *options)
                hashes[preset + label] = tensor_hash(folder / "out.gguf")
    text = json.dumps({"types": types, "hashes": hashes}, indent=1) + "\n"
    GOLDENS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
