"""Tiny models that read images: what is compared with transformers, for every family alike.

A family adds a file to this folder, `NAME.py`, with CASES (see gemma3.py). A case says which class of transformers to
make, with which config, and how a prompt marks an image. Then

    python -m tests.models.make_vision_goldens NAME

runs the model and the processor of transformers on the case's prompts (torch and transformers are needed), and writes
`goldens/NAME.npz`: config.json, the shapes of the tensors, and what was computed. `test_vision.py` finds the case,
makes the same weights from its seed with numpy, converts them with our converter, and compares through the engine:
token ids, embeddings of images, logits, greedy tokens; with batches smaller than an image, prompts cut anywhere, other
requests in the same batch, and prefixes from the cache.

Weights are random by tensor name (`families.random_weight`). Where a family needs other ones (a gate that must not be
0, norms that are published as differences from 1), it overrides `Case.weight`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine import Engine, Media, SamplingParams, Text
from ollama_engine.convert import convert_model
from ollama_engine.models.base import Multimodal
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.segments import Segment
from tests.convert.folders import bpe_tokenizer, write_json, write_safetensors
from tests.models.families import random_weight
from tests.models.published import checksum
from tests.models.vision.pictures import Picture, skip_with_another_pillow
from tests.support.tiny import SPECIALS, Weights

FOLDER = Path(__file__).parent
GOLDENS = FOLDER / "goldens"
MACHINERY = {"__init__", "harness", "pictures", "published_processor", "reference", "tiles"}
"""Files of this folder that are no family."""

TOLERANCE = 5e-5
"""Largest difference in standard deviations, for float32 weights and a float32 cache: two ways to add up the same
numbers. At most 6e-6 is found; kernels for other CPUs add in other orders."""
LEAD = 5e-3
"""By how much every greedy token must lead before the second best, for the tokens to be comparable."""
GREEDY_STEPS = 32
N_CTX = 512
N_TEXT = 320
"""Ids below are the vocabulary of tests.support.tiny; the tokens of a case follow."""

Prompt = tuple[str | Picture, ...]


@dataclass(frozen=True)
class Token:
    """A token that the vocabulary has beside those of tests.support.tiny."""

    text: str
    name: str | None = None
    """Its name in transformers' tokenizer: "image_token", "boi_token", ... None for no name."""
    special: bool = True


@dataclass(frozen=True, kw_only=True)
class Case:
    """One tiny model. `config` are the arguments of its config class, with text_config and vision_config."""

    name: str
    model: str
    """Class in transformers, such as "Gemma3ForConditionalGeneration"."""
    config: Mapping[str, Any]
    placeholder: str
    """The text that stands for an image for transformers' processor."""
    tokens: tuple[Token, ...] = ()
    """With the ids N_TEXT, N_TEXT + 1, ..., in this order."""
    norms: float = 1.0
    """The number that norms of the text part are near: 0 where they are published as differences from 1."""
    embeddings: float = 0.3
    seed: int = 1
    prompts: Mapping[str, Prompt] = field(default_factory=lambda: PROMPTS)
    pictures: tuple[Picture, ...] = field(default_factory=lambda: PICTURES)
    """Whose pixels are compared, bit by bit, as the processor resizes and normalizes them."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """JSON files beside config.json that the converter reads, such as preprocessor_config.json, by name."""
    soft_token: int | None = None
    """The id that transformers' processor writes at the inputs of an image, where the engine writes another one."""

    def __str__(self) -> str:
        return self.name

    @property
    def banned(self) -> dict[int, float]:
        """A bias against tokens that would end an answer, or are no text."""
        return dict.fromkeys(range(N_TEXT - len(SPECIALS), N_TEXT + len(self.tokens)), -np.inf)

    def weight(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        """A random weight. Norms are near 1, or near `norms` where the text part has RMS norms."""
        near = self.norms if "language_model" in name or "soft_emb_norm" in name else 1.0
        return random_weight(name, shape, seed=self.seed, norms=near, embeddings=self.embeddings)

    def weights(self, shapes: Mapping[str, list[int]]) -> Weights:
        return {name: self.weight(name, shape) for name, shape in shapes.items()}

    def processor(self, tokenizer: Any) -> Any:
        """transformers' processor, with the slow image processor (Pillow): every family writes this."""
        raise NotImplementedError

    def adapt(self, model: Any) -> None:
        """Change transformers' model where it does not compute what published weights were trained with."""

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        """Embeddings that transformers computes of each image of a prompt, [rows, n_embd] each, in their order.

        `inputs`: what the processor returned, as torch tensors.
        """
        found = model.get_image_features(inputs["pixel_values"]).pooler_output
        return [np.asarray(rows.float().numpy()) for rows in found]

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        """Arrays that transformers' processor made of one image, named and formed as PreparedImage.arrays.

        `inputs`: what it returned, as torch tensors. Names that are left out are not compared.
        """
        raise NotImplementedError

    def takes(self, picture: Picture) -> bool:
        """Whether transformers' processor takes a picture of these sides."""
        return True

    def encoded(self, multimodal: Multimodal, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """The engine's embeddings of an image, as `features` returns them."""
        return embeddings

    def ids(self, inputs: Inputs) -> list[int]:
        """The engine's inputs as the ids that transformers' processor writes."""
        ids = inputs.tokens.copy()
        for span in inputs.media:
            if self.soft_token is not None:
                ids[span.begin : span.end] = self.soft_token
        return [int(id_) for id_ in ids]

    def text(self, prompt: Prompt) -> str:
        """A prompt for transformers' processor."""
        return "".join(self.placeholder if isinstance(part, Picture) else part for part in prompt)

    def segments(self, prompt: Prompt) -> list[Segment]:
        """The same prompt for the engine."""
        return [Media(p.file) if isinstance(p, Picture) else Text(p, parse_special=True) for p in prompt]

    def tokenizer_json(self) -> dict[str, Any]:
        """A byte-level vocabulary that can spell every text, and the tokens of the case."""
        made = bpe_tokenizer(N_TEXT)
        added = [
            *made["added_tokens"],
            *(
                {"id": N_TEXT + i, "content": token.text, "special": token.special, "normalized": False}
                for i, token in enumerate(self.tokens)
            ),
        ]
        # The rest is what the tokenizers package asks for beside what the converter reads.
        exact = {"single_word": False, "lstrip": False, "rstrip": False}
        begin = {"id": SPECIALS[0], "ids": [N_TEXT - len(SPECIALS)], "tokens": [SPECIALS[0]]}
        made["post_processor"] |= {"pair": [], "special_tokens": {SPECIALS[0]: begin}}
        for part in made["pre_tokenizer"]["pretokenizers"]:
            if part["type"] == "ByteLevel":
                part["trim_offsets"] = True
        decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {**made, "added_tokens": [{**token, **exact} for token in added], "decoder": decoder}

    def write(self, folder: Path, config: Mapping[str, Any], weights: Weights) -> Path:
        """A folder as the model is published."""
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / "model.safetensors", weights, "F32")
        for name, value in {**self.files, "config.json": config, "tokenizer.json": self.tokenizer_json()}.items():
            write_json(folder / name, value)
        return folder


PROMPTS: Mapping[str, Prompt] = {
    "one": ("Look: ", Picture(100, 60), " what is it?"),
    "two": (Picture(31, 97, 1), "and\n", Picture(97, 31, 2), "\n\nare they alike?"),
    "three": ("a", Picture(64, 64, 3), "b", Picture(5, 3, 4), Picture(300, 200, 5), "c"),
}

PICTURES = (
    *(Picture(*size) for size in ((1, 1), (3, 5), (2000, 10), (10, 2000), (640, 427), (333, 1000), (1500, 1501))),
    *(Picture(45, 67, mode=mode) for mode in ("RGBA", "LA", "L", "P", "1", "CMYK")),
)


def cases() -> tuple[Case, ...]:
    """The cases of all families, in the order of their files' names."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in MACHINERY)
    return tuple(case for name in names for case in import_module(f"{__package__}.{name}").CASES)


# -- goldens -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The answer of transformers to one prompt."""

    ids: NDArray[np.int64]
    """As its processor writes them, images included."""
    features: list[NDArray[np.float32]]
    """The embeddings of each image, [rows, n_embd]."""
    rows: NDArray[np.int64]
    logits: NDArray[np.float32]
    """Logits of `rows` of the prompt."""
    tokens: list[int]
    """The greedy ones after it."""


@dataclass(frozen=True)
class Golden:
    """The config.json of a case, its tensors' shapes, and what transformers answers to each prompt."""

    config: dict[str, Any]
    shapes: dict[str, list[int]]
    checksum: int
    answers: dict[str, Answer]
    pixels: list[dict[str, int]]
    """For each of `Case.pictures` the checksums of its arrays, by their names."""


def checksums(arrays: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """CRC-32 of each array's bytes, as little-endian f32 or i32, by its name."""
    return {
        name: zlib.crc32(np.ascontiguousarray(values, "<f4" if values.dtype.kind == "f" else "<i4").tobytes())
        for name, values in arrays.items()
    }


def save(case: Case, golden: Golden) -> Path:
    GOLDENS.mkdir(exist_ok=True)
    texts = json.dumps(
        {"config": golden.config, "shapes": golden.shapes, "checksum": golden.checksum, "pixels": golden.pixels}
    )
    arrays: dict[str, NDArray[Any]] = {"texts": np.frombuffer(texts.encode(), np.uint8)}
    for name, answer in golden.answers.items():
        arrays |= {f"{name}.{i}.features": rows.astype(np.float32) for i, rows in enumerate(answer.features)}
        arrays |= {f"{name}.ids": answer.ids, f"{name}.rows": answer.rows, f"{name}.logits": answer.logits,
                   f"{name}.tokens": np.array(answer.tokens, np.int32)}  # fmt: skip
    path = GOLDENS / f"{case.name}.npz"
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def load(case: Case) -> Golden:
    """Raises FileNotFoundError where the golden was not made yet. Skips the test where Pillow resizes otherwise."""
    skip_with_another_pillow()
    return read(case)


def read(case: Case) -> Golden:
    """load() on any machine: for what does not depend on pixels, such as shapes."""
    with np.load(GOLDENS / f"{case.name}.npz") as data:
        texts = json.loads(data["texts"].tobytes())
        answers = {}
        for name, prompt in case.prompts.items():
            n = sum(isinstance(part, Picture) for part in prompt)
            features = [data[f"{name}.{i}.features"] for i in range(n)]
            answers[name] = Answer(data[f"{name}.ids"], features, data[f"{name}.rows"], data[f"{name}.logits"],
                                   data[f"{name}.tokens"].tolist())  # fmt: skip
    return Golden(**texts, answers=answers)


def converted(case: Case, folder: Path, outtype: str = "f32") -> Path:
    """The GGUF file of a case, made of its golden's config and shapes; no torch is needed."""
    golden = read(case)
    weights = case.weights(golden.shapes)
    assert checksum(weights) == golden.checksum, (
        f"numpy {np.__version__} makes other random weights than when the golden was made; "
        f"run python -m tests.models.make_vision_goldens {case.name}"
    )
    target = folder / f"{case.name}-{outtype}.gguf"
    if not target.exists():
        convert_model(case.write(folder / case.name, golden.config, weights), target, outtype)
    return target


# -- the engine --------------------------------------------------------------------------------------------------------


def engine(path: str | Path, **options: Any) -> Engine:
    defaults = {"num_ctx": N_CTX, "parallel": 1, "threads": 1, "gpu_layers": 0, "kv_cache_type": "f32"}
    return Engine(path, **{**defaults, **options})


def greedy(case: Case) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=GREEDY_STEPS, logit_bias=case.banned)
