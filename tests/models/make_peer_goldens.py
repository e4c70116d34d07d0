"""Write peer_goldens.json: `python -m tests.models.make_peer_goldens [case ...]`, with torch and llama.cpp's tools.

`python bench/peers.py build` builds the tools from the pinned sources.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.peer_tools import tool
from tests.convert.quant.golden import tensor_hash
from tests.convert.quant.make_goldens import quantize
from tests.models.families import Family
from tests.models.family_reference import FamilyReference
from tests.models.peer_cases import CASES, PRESETS, load, peer_perplexity, save, write_files
from tests.models.published import checksum


def make(case: Family, folder: Path) -> dict[str, Any]:
    reference = FamilyReference(case, folder / "source")
    paths = write_files(reference.folder, folder)
    hashes = {}
    for preset in PRESETS:
        quantize(tool("llama-quantize"), paths["f32"], folder / "theirs.gguf", preset)
        hashes[preset] = tensor_hash(folder / "theirs.gguf")
    return {
        "config": reference.config,
        "shapes": reference.shapes,
        "checksum": checksum(reference.weights),
        "hashes": hashes,
        "perplexity": {kind: peer_perplexity(path) for kind, path in paths.items()},
    }


def main(names: list[str]) -> None:
    kept = load() if names else {}
    goldens = {case.name: kept[case.name] for case in CASES if case.name in kept and case.name not in names}
    for case in CASES:
        if case.name in goldens:
            continue
        with tempfile.TemporaryDirectory() as folder:
            goldens[case.name] = make(case, Path(folder))
        print(case.name, goldens[case.name]["perplexity"], flush=True)
    save({case.name: goldens[case.name] for case in CASES})


if __name__ == "__main__":
    main(sys.argv[1:])
