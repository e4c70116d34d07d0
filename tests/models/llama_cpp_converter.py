"""What llama.cpp's converter writes of our made folders: `python -m tests.models.llama_cpp_converter` records it.

Kept are keys, and names, shapes and digests of tensors, in `llama_cpp_converter.json`. The converter is the one of the
pinned sources (`python bench/peers.py build` fetches them); it needs torch and transformers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from bench.peer_tools import ROOT, cache_folder, load_fetch
from tests.models import families
from tests.models.heads import with_head
from tests.models.vision import harness

RECORDED = Path(__file__).with_suffix(".json")
NAMES = ("qwen35-mmproj", "nemotron_h_moe", "nemotron_h_moe-latent-bf16")
PROGRAM = """
import json, sys
_, sources, calls = sys.argv
sys.path[:0] = [sources, sources + "/gguf-py"]
import conversion.nemotron
conversion.nemotron.NemotronHModel.set_vocab = lambda self: None  # it knows published vocabularies alone
import convert_hf_to_gguf
for arguments in json.loads(calls):
    sys.argv = ["convert_hf_to_gguf.py", *arguments]
    convert_hf_to_gguf.main()
"""
LETTERS = {"linear_attention": "M", "moe": "E", "full_attention": "*"}


def sources() -> Path | None:
    """llama.cpp's pinned sources; None where they were not fetched."""
    lock = load_fetch().read_lock(ROOT / "csrc/ggml/ggml.lock")
    folder = cache_folder(lock["sha256"]) / "source"
    return folder if (folder / "convert_hf_to_gguf.py").exists() else None


def written(path: Path) -> dict[str, Any]:
    """Keys of the model, and shape and digest of each tensor by its name. The order of numbers does not count."""
    reader = gguf.GGUFReader(path)
    keys = {key: entry.contents() for key, entry in reader.fields.items()
            if not key.startswith(("GGUF.", "general.", "tokenizer."))}  # fmt: skip
    tensors = {t.name: f"{'x'.join(map(str, t.shape))} {zlib.crc32(np.sort(np.ravel(t.data)).tobytes()):08x}"
               for t in reader.tensors}  # fmt: skip
    return {"keys": keys, "tensors": tensors}


def write_source(name: str, source: Path) -> list[str]:
    """The folder of a case, as it is published. Flags for the converter."""
    if name.endswith("-mmproj"):
        case = next(case for case in harness.cases() if f"{case.name}-mmproj" == name)
        golden = harness.load(case)
        case.write(source, golden.config, case.weights(golden.shapes))
        return ["--mmproj"]
    family = families.case(name)
    config = dict(families.load(family).config)
    # As Nemotron is published, and with a size of heads that it checks under another model's name.
    kinds = config.pop("layers_block_type")
    config |= {"hybrid_override_pattern": "".join(LETTERS[kind] for kind in kinds), "num_nextn_predict_layers": 1,
               "mamba_d_head": config["mamba_head_dim"]}  # fmt: skip
    families.write_folder(source, config, with_head(family), family.dtype)
    return []


def convert_all(folder: Path) -> dict[str, Path]:
    """Their files of all cases. Raises CalledProcessError."""
    made = {name: folder / f"{name}.gguf" for name in NAMES}
    calls = [
        [str(folder / name), "--outfile", str(path), "--outtype", "f32", *write_source(name, folder / name)]
        for name, path in made.items()
    ]  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, str(sources()), json.dumps(calls)]
    subprocess.run(command, check=True, capture_output=True)
    return made


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())[name]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = {name: written(path) for name, path in convert_all(Path(folder)).items()}
    RECORDED.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
