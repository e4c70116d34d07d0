"""How fast does a tokenizer load, encode and decode?

    python bench/bench_tokenizer.py MODEL.gguf [TEXT_FILE]

prints one JSON object: seconds to build the tokenizer from metadata already read, and MB/s (UTF-8 bytes, 1e6) of both
directions; the best of five runs each, processor time. Without a text file it makes 1 MB of English-looking words.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ollama_engine.ml.gguf import GGUFFile
from ollama_engine.tokenizer import from_metadata


def words(size: int) -> str:
    rng = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgk"
    weights = range(len(letters) * 2, 0, -2)
    vocabulary = ["".join(rng.choices(letters, weights, k=rng.randrange(1, 11))) for _ in range(3000)]
    return " ".join(rng.choices(vocabulary, k=size // 4))[:size]


def best(call: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, result) of the fastest of five calls."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        result = call()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path, nargs="?")
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8", errors="surrogateescape") if args.text else words(1_000_000)
    megabytes = len(text.encode("utf-8", "surrogateescape")) / 1e6
    with GGUFFile(args.model) as file:
        metadata = dict(file.metadata)
    load, tokenizer = best(lambda: from_metadata(metadata))
    encode, ids = best(lambda: tokenizer.encode(text))
    decode, _ = best(lambda: tokenizer.decode(ids))
    result = {
        "model": args.model.name,
        "n_vocab": tokenizer.n_vocab,
        "tokens": len(ids),
        "load_seconds": round(load, 3),
        "encode_mb_per_second": round(megabytes / encode, 2),
        "decode_mb_per_second": round(megabytes / decode, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
