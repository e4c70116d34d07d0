"""Tiny encoders: a configuration of transformers, random weights, our converter. As `families`, for what only reads.

The cases themselves are in `architectures`. `test_encoders` compares with goldens that transformers made,
`test_encoder_reference` with transformers itself.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine import Engine
from ollama_engine.convert import convert_model
from tests.convert.folders import bpe_tokenizer, write_json
from tests.models import architectures, families
from tests.models.cases import EXACT, N_CTX
from tests.models.published import Published, read_texts
from tests.support.tiny import SPECIALS, Weights

N_VOCAB = families.N_VOCAB
PROMPT_LENGTH = 70
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MARK = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
QUERY, DOCUMENT = "what is it", "it is a small thing, and there it ends"
SIZES = {
    "vocab_size": N_VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "max_position_embeddings": N_CTX, "pad_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`stem` of the class names, as in BertModel. `ranks`: with a classification head of one score."""

    name: str
    stem: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ranks: bool = False
    bpe: bool = False
    """A byte-level vocabulary with BERT's marks, in place of WordPiece."""
    dtype: str = "F32"
    tolerance: float = EXACT

    def __str__(self) -> str:
        return self.name

    @property
    def class_name(self) -> str:
        """Name of the class in transformers."""
        return f"{self.stem}{'ForSequenceClassification' if self.ranks else 'Model'}"

    @property
    def prompt(self) -> list[int]:
        """Ordinary tokens of either vocabulary."""
        rng = np.random.default_rng(len(self.name))
        return [int(t) for t in rng.integers(len(MARKS), N_VOCAB - len(SPECIALS), PROMPT_LENGTH)]

    def weights(self, shapes: Mapping[str, list[int]]) -> Weights:
        return families.Family(self.name, self.stem).weights(shapes)

    def write(self, path: Path, config: Mapping[str, Any], weights: Weights) -> Path:
        """The folder, with a vocabulary of the kind that such models have."""
        families.write_folder(path, config, weights, self.dtype)
        write_json(path / "tokenizer.json", marked_bpe() if self.bpe else word_pieces())
        names = dict(zip(("pad", "unk", "cls", "sep", "mask"), MARKS, strict=True))
        write_json(path / "tokenizer_config.json", {f"{name}_token": text for name, text in names.items()})
        return path

    def engine(self, path: str | Path, **options: Any) -> Engine:
        return Engine(path, **{"threads": 1, "gpu_layers": 0, **options})


def cases() -> tuple[Case, ...]:
    """The cases of all text encoders."""
    return architectures.all_cases(Case)


def case(name: str) -> Case:
    return next(c for c in cases() if c.name == name)


def word_pieces() -> dict[str, Any]:
    """tokenizer.json of a WordPiece vocabulary that can spell all words of small letters."""
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    pairs = ("".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2))
    words = [*MARKS, *letters, *(f"##{letter}" for letter in letters), *itertools.islice(pairs, N_VOCAB)][:N_VOCAB]
    return {
        "added_tokens": [{"id": i, "content": text, **MARK} for i, text in enumerate(MARKS)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {text: i for i, text in enumerate(words)}},
    }  # fmt: skip


def marked_bpe() -> dict[str, Any]:
    """tokenizer.json of a byte-level vocabulary whose last tokens are BERT's marks."""
    tokenizer = bpe_tokenizer(
        N_VOCAB, split=r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    )
    names = ("[MASK]", "[CLS]", "[SEP]")
    for entry, name in zip(tokenizer["added_tokens"], names, strict=True):
        entry.update(MARK, content=name)
    tokenizer["pre_tokenizer"]["pretokenizers"][-1]["trim_offsets"] = False
    ids = {"[CLS]": N_VOCAB - 2, "[SEP]": N_VOCAB - 1}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": _template("[CLS] A [SEP]"),
        "pair": _template("[CLS] A [SEP] B [SEP]"),
        "special_tokens": {text: {"id": text, "ids": [id_], "tokens": [text]} for text, id_ in ids.items()},
    }
    return tokenizer


def _template(text: str) -> list[dict[str, Any]]:
    """The steps of a template; what comes after B is of type 1."""
    parts = text.split(" ")
    seen = ["B" in parts[: i + 1] for i in range(len(parts))]
    kinds = ["Sequence" if part in ("A", "B") else "SpecialToken" for part in parts]
    return [{kind: {"id": part, "type_id": int(second)}} for kind, part, second in zip(kinds, parts, seen, strict=True)]


# -- goldens -----------------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).parent / "encoder_goldens"


@dataclass(frozen=True)
class Golden(Published):
    """Results of a case in transformers."""

    rows: NDArray[np.int64]
    hidden: NDArray[np.float32]
    """Hidden states of `rows` of the prompt, [len(rows), n_embd]."""
    mean: NDArray[np.float32]
    """Their mean over all rows, [n_embd]."""
    score: NDArray[np.float32]
    """The score of QUERY and DOCUMENT, [1]; empty for a case that ranks nothing."""


def save(case: Case, golden: Golden) -> Path:
    return golden.write(
        FOLDER / f"{case.name}.npz", rows=golden.rows, hidden=golden.hidden, mean=golden.mean, score=golden.score
    )


def load(case: Case) -> Golden:
    with np.load(FOLDER / f"{case.name}.npz") as data:
        arrays = {name: data[name] for name in ("rows", "hidden", "mean", "score")}
        return Golden(**read_texts(data), **arrays)


def converted(case: Case, folder: Path, outtype: str = "f32") -> Path:
    """The GGUF file of a case, made of its golden's config and shapes; no torch is needed."""
    golden = load(case)
    weights = golden.weights_of(case, "make_encoder_goldens")
    target = folder / f"{case.name}-{outtype}.gguf"
    if not target.exists():
        convert_model(case.write(folder / case.name, golden.config, weights), target, outtype)
    return target
