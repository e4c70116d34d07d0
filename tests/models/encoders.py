"""Tiny encoders: a configuration of transformers, random weights, our converter. As `families`, for what only reads.

The cases themselves are in `architectures`. `test_encoders` compares with goldens that transformers made,
`test_encoder_reference` with transformers itself.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine import Engine
from ollama_engine.convert import convert_model
from tests.convert.folders import bpe_tokenizer, write_json, write_safetensors
from tests.models import architectures, families
from tests.models.cases import EXACT, N_CTX
from tests.models.published import Published, read_texts
from tests.support.tiny import SPECIALS, Weights

N_VOCAB = families.N_VOCAB
PROMPT_LENGTH = 70
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NAMES = ("pad", "unk", "cls", "sep", "mask")
XLM_MARKS = ("<s>", "<pad>", "</s>", "<unk>")
"""The first tokens of XLM-R."""
XLM_NAMES = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
XLM_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
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
    vocabulary: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """The kind of vocabulary; byte-level ones have BERT's marks."""
    norms: float = 1.0
    """As in `families.Family`."""
    n_expert: int = 0
    """Experts in every other layer, as in Nomic Embed 2; transformers has no such class (`nomic_reference`)."""
    n_dense: int = 0
    """Hidden size of two dense layers behind the pooling, as sentence-transformers have them; 0 without them."""
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
        return families.Family(self.name, self.stem, norms=self.norms).weights(shapes)

    def write(self, path: Path, config: Mapping[str, Any], weights: Weights) -> Path:
        """The folder, with a vocabulary of the kind that such models have."""
        families.write_folder(path, config, weights, self.dtype)
        make = {"wordpiece": word_pieces, "bpe": marked_bpe, "unigram": unigram_pieces}[self.vocabulary]
        write_json(path / "tokenizer.json", make())
        names = XLM_NAMES if self.vocabulary == "unigram" else dict(zip(NAMES, MARKS, strict=True))
        write_json(path / "tokenizer_config.json", {f"{name}_token": text for name, text in names.items()})
        if self.n_dense:
            write_modules(path, "mean_tokens", self.dense_weights())
        return path

    def dense_weights(self) -> list[NDArray[np.float32]]:
        """The matrices behind the pooling, [out, in] each."""
        shapes = ([self.n_dense, SIZES["hidden_size"]], [SIZES["hidden_size"], self.n_dense]) if self.n_dense else ()
        return [self.weights({f"dense_{i}": shape})[f"dense_{i}"] for i, shape in enumerate(shapes)]

    def projected(self, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
        """A text's vector, by numpy: what the dense layers make of pooled hidden states [..., n_embd]."""
        x = pooled.astype(np.float64)
        for matrix in self.dense_weights():
            x = x @ matrix.T.astype(np.float64)
        return x.astype(np.float32)

    def engine(self, path: str | Path, **options: Any) -> Engine:
        return Engine(path, **{"threads": 1, "gpu_layers": 0, **options})


def mask_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have texts attend with masks, as on other devices."""
    for room in ("runner.load.caches", "runner.load.serving_memory", "runner.embed.embedder"):
        monkeypatch.setattr(f"ollama_engine.{room}.lists_rows", lambda backend: False)


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


def unigram_pieces() -> dict[str, Any]:
    """tokenizer.json of a vocabulary as XLM-R has it: pieces with scores, <mask> last, two </s> between two texts."""
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    pairs = ("".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2))
    pieces = ["\u2581", *letters, *(f"\u2581{letter}" for letter in string.ascii_lowercase), *pairs]
    texts = [*XLM_MARKS, *pieces[: N_VOCAB - len(XLM_MARKS) - 1], "<mask>"]
    ids = {text: texts.index(text) for text in ("<s>", "</s>")}
    marked = [(id_, text) for id_, text in enumerate(texts) if text in (*XLM_MARKS, "<mask>")]
    return {
        "added_tokens": [{"id": id_, "content": text, **MARK} for id_, text in marked],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": _template("<s> A </s>"),
            "pair": _template("<s> A </s> </s> B </s>"),
            "special_tokens": {text: {"id": text, "ids": [id_], "tokens": [text]} for text, id_ in ids.items()},
        },
        "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": False,
                  "vocab": [[text, 0.0 if text in dict(marked).values() else -1.0 - 0.01 * i]
                            for i, text in enumerate(texts)]},
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


def write_modules(path: Path, pooling: str, dense: Sequence[NDArray[np.float32]] = ()) -> None:
    """What sentence-transformers add to a folder: how hidden states are pooled, and layers behind that."""
    kinds = [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        *(("Dense", f"{i}_Dense") for i in range(2, 2 + len(dense))),
    ]
    write_json(path / "modules.json", [{"type": f"sentence_transformers.models.{kind}", "path": folder}
                                       for kind, folder in kinds])  # fmt: skip
    for _, folder in kinds[1:]:
        (path / folder).mkdir(exist_ok=True)
    write_json(path / "1_Pooling" / "config.json", {f"pooling_mode_{pooling}": True})
    for i, weights in enumerate(dense, 2):
        out, into = weights.shape
        write_json(path / f"{i}_Dense" / "config.json", {
            "in_features": into, "out_features": out, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        })  # fmt: skip
        write_safetensors(path / f"{i}_Dense" / "model.safetensors", {"linear.weight": weights})


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
