"""Writes goldens.json: the ids that llama.cpp gives to texts under every name of a pre-tokenizer.

    python -m tests.tokenizer.make_goldens

needs llama.cpp's library as `python bench/peers.py build` leaves it.

A text is left out of a name's ids (null) where llama.cpp is no reference: where it differs from the expressions of the
model's own tokenizer, which the `tokenizers` library runs here. The name then has a reason below; a difference without
a reason, and a reason without a difference, end this script. What is left out is compared with those expressions in
test_bpe_reference.py.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, trainers

from bench.peer_llama import MISSING, Llama, find
from ollama_engine.tokenizer.pretokenizer_table import find_spec, pretokenizer_names
from tests.tokenizer.corpus import nasty_texts, prose
from tests.tokenizer.test_bpe_reference import original, reference
from tests.tokenizer.vocabs import BYTE, NORMAL, bpe_metadata, train_bpe, write_gguf

OUT = Path(__file__).with_name("goldens.json")
ABOUT = (
    "Ids that llama.cpp gives to these texts, by the name of the pre-tokenizer; names with equal results share them. "
    "null is a text on which llama.cpp differs from the model's own tokenizer; left_out says why. "
    "python -m tests.tokenizer.make_goldens writes this file."
)
NOT_COVERED = frozenset({"whitespace"})
"""llama.cpp aborts on a vocabulary with this name; test_goldens.py tests what is original about it."""
RAW = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
"""Names whose tokens are plain UTF-8."""

CASE = "llama.cpp takes letters other than ASCII for both upper and lower case, or ends words at combining marks"
SPACE = "llama.cpp takes U+2028 and U+3000 for white space alone, and not for the characters of the ranges they lie in"
LEFT_OUT = {
    **dict.fromkeys(("gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie"), CASE),
    **dict.fromkeys(("cohere2moe", "tiny_aya", "kimi-k2", "tekken", "youtu"), CASE),
    "granite-embed-multi-97m": "llama.cpp has no upper case beyond U+FFFF, and no U+017F in contractions",
    "afmoe": "llama.cpp does not part a group of digits from the white space before it",
    "superbpe": "llama.cpp groups ASCII digits alone",
    **dict.fromkeys(("deepseek-coder", "deepseek-llm"), SPACE),
}
"""Why llama.cpp is no reference for some texts, by the name of the pre-tokenizer."""

WRITTEN = (
    "I'm here, it's 12 o'clock.  They'll say 'Hello'\n\n\n  and leave...\t(maybe)\r\n",
    "x = 1234567 + 89;\n\tif (x>=3.14) { return x/2; } // ok\n",
    "   leading and trailing   ",
    "a\n b\n  c\n\n   d",
    " \n \n\n\t \n x",
    "iPhone XMLHttp caf\u00e9 cafe\u0301 \u041f\u0440\u0438\u0432\u0435\u0301\u0442",
    "\u0968\u0969\u0968\u0969\u0968\u0969\u65e5\u672c\u8a9e \u096a123\u096a",
    "'\u017f \U00010400\U00010428\U00010400\U00010428 12\u0967\u0968\u0969 a\u3000b\u2028\u3000c   1234",
)
BORDERS = ("'sabout", "?!\n\n")
"""Texts with borders between pieces that few names have. They are tokens of the vocabularies, whole."""
DRAWN = 50
"""Texts of the corpus; those follow that tell names with different rules apart."""
CANDIDATES = 600

Ids = list[list[int] | None]


def metadata(name: str, vocab: dict[str, list[str]]) -> dict[str, Any]:
    """A GGUF file's, for a vocabulary of RAW or of the others."""
    result = bpe_metadata(vocab["tokens"], vocab["merges"], pre=name)
    if name in RAW:
        kinds = [BYTE if re.fullmatch("<0x..>", text) else NORMAL for text in vocab["tokens"]]
        result["tokenizer.ggml.token_type"] = kinds
    return result


def byte_level() -> dict[str, list[str]]:
    tokens, merges = train_bpe(corpus(), 1_200)
    return {"tokens": tokens, "merges": merges}


def corpus() -> list[str]:
    return [*nasty_texts(4_000, seed=22), prose(20_000), *BORDERS * 200]


def raw() -> dict[str, list[str]]:
    """Lines apart: like Gemma's, no merge reaches over a newline. llama.cpp reads no token with a NUL."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1_200, special_tokens=special, show_progress=False, max_token_length=16)
    counts = Counter("".join(corpus()))
    rare = [*sorted(counts, key=lambda c: (-counts[c], c))[300:], "\n", "\0"]  # the trainer leaves out any of a tie
    lines = [line for text in corpus() for line in re.split(f"[{re.escape(''.join(rare))}]", text)]
    tokenizer.train_from_iterator([*lines, "\n"], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {"tokens": tokens, "merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]}


def llama_ids(llama: Llama, data: dict[str, Any], texts: list[str]) -> list[list[int]]:
    """The ids that llama.cpp gives to the texts with a vocabulary of this metadata."""
    room = np.zeros(4096, np.int32)
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "vocab.gguf", data)
        with llama.model(str(path), vocab_only=True) as model:
            return [room[: llama.tokenize(model, text.encode(), room)].tolist() for text in texts]


def agreed(name: str, vocab: dict[str, list[str]], texts: list[str], llama_ids: list[list[int]]) -> Ids:
    """The ids on which the model's own expressions agree, None for others."""
    if name in RAW:
        return [*llama_ids]
    tokenizer = reference(
        (vocab["tokens"], vocab["merges"]), original(name), ignore_merges=find_spec(name).ignore_merges
    )
    ids = [mine if tokenizer.encode(text).ids == mine else None for text, mine in zip(texts, llama_ids, strict=True)]
    if (None in ids) != (name in LEFT_OUT):
        text = texts[ids.index(None)] if None in ids else "no text"
        raise SystemExit(f"{name}: llama.cpp differs on {text!r}; LEFT_OUT says {LEFT_OUT.get(name)!r}")
    return ids


def telling(ids: dict[str, Ids], drawn: int) -> Iterator[int]:
    """Indices from `drawn` on of texts that tell two names with different rules apart, where none before does."""
    pairs = [(a, b) for a, b in combinations(ids, 2) if rules(a) != rules(b)]
    for i in range(len(next(iter(ids.values())))):
        both = [(ids[a][i], ids[b][i]) for a, b in pairs]
        left = [pair for pair, (a, b) in zip(pairs, both, strict=True) if a is None or b is None or a == b]
        if i >= drawn and len(left) < len(pairs):
            yield i
        pairs = left
    if pairs:
        raise SystemExit(f"no text tells these apart: {pairs[:20]}")


def rules(name: str) -> list[str]:
    """The rules of its stages, which tell names apart. An `[\\r\\n]` behind `\\s*` takes what `[\\r\\n]+` takes."""
    return [f"{stage.rule} {stage.expression}".replace(r"\s*[\r\n]+", r"\s*[\r\n]") for stage in find_spec(name).stages]


def same_as(ids: dict[str, Ids]) -> dict[str, str]:
    """Every name with the first one that has the same ids."""
    return {name: next(first for first in ids if ids[first] == ids[name]) for name in ids}


def main() -> None:
    vocabs = {"byte_level": byte_level(), "raw": raw()}
    texts = [*WRITTEN, *BORDERS, *nasty_texts(CANDIDATES, seed=21)]
    ids: dict[str, Ids] = {}
    with tempfile.TemporaryDirectory() as folder:
        llama = find(Path(folder))
        if llama is None:
            raise SystemExit(MISSING)
        for name in sorted(set(pretokenizer_names()) - NOT_COVERED):
            vocab = vocabs["raw" if name in RAW else "byte_level"]
            ids[name] = agreed(name, vocab, texts, llama_ids(llama, metadata(name, vocab), texts))
    first = len(WRITTEN) + len(BORDERS) + DRAWN
    kept = [*range(first), *telling({name: found for name, found in ids.items() if name not in RAW}, first)]
    ids = {name: [found[i] for i in kept] for name, found in ids.items()}
    same = same_as(ids)
    save({
        "about": ABOUT, "left_out": LEFT_OUT, "raw_names": RAW, "texts": [texts[i] for i in kept], **vocabs,
        "same_as": same, "ids": {name: ids[name] for name in sorted(set(same.values()))},
    })  # fmt: skip


def save(goldens: dict[str, Any]) -> None:
    """A line for each key, and for each name's ids."""
    lines = [f"{json.dumps(key)}: {_text(value, key == 'ids')}" for key, value in goldens.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _text(value: Any, lines: bool) -> str:
    if not lines:
        return json.dumps(value, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_text(each, False)}" for key, each in value.items()) + "\n}"


if __name__ == "__main__":
    main()
