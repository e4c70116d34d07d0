"""Files of EAGLE-3 heads that are damaged or of another model: each is refused with what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models.eagle3 import Eagle3Head
from ollama_engine.models.llama import Llama
from tests.models import eagle_heads, families

Made = Callable[..., Eagle3Head]
WRONG = {"f32": (3, 5, 7), "i64": (200,), "i32": (10, 20)}


@pytest.fixture(scope="module")
def parts(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[dict[str, Any], Weights, Llama, dict[str, Tensor]]]:
    """Metadata and weights of a head, the model that it is for, and tensors that do not fit, by their types."""
    folder = tmp_path_factory.mktemp("head")
    head = next(case for case in eagle_heads.cases() if case.name == "eagle3-llama")
    target = families.converted(head.family, folder)
    with ExitStack() as undo:
        files = [undo.enter_context(GGUFFile(path)) for path in (target, eagle_heads.converted(head, folder, target))]
        backend = undo.enter_context(Backend(BackendParams(threads=1, gpu_layers=0)))
        of_model, of_head = (undo.enter_context(Weights(backend, file)) for file in files)
        for weights in (of_model, of_head):
            weights.load()
        storage = undo.enter_context(Storage(backend, len(WRONG)))
        wrong = {dtype: storage.add(dtype, dtype, shape) for dtype, shape in WRONG.items()}
        storage.allocate(0)
        model = Llama(Metadata(dict(files[0].metadata)), of_model)
        yield dict(files[1].metadata), of_head, model, wrong


@pytest.fixture
def made(parts: tuple[dict[str, Any], Weights, Llama, dict[str, Tensor]]) -> Made:
    metadata, weights, model, wrong = parts

    def make(keys: dict[str, Any] | None = None, /, **tensors: str | None) -> Eagle3Head:
        """The head with other keys, and with `wrong` tensors of these types, or none, in the place of its own."""
        replaced = {name.replace("__", "."): kind for name, kind in tensors.items()}
        kept = {name: tensor for name, tensor in weights.items() if name not in replaced}
        added = {name: wrong[kind] for name, kind in replaced.items() if kind is not None}
        changed = {f"eagle3.{key}": value for key, value in (keys or {}).items()}
        return Eagle3Head(Metadata({**metadata, **changed}), {**kept, **added}, model)

    return make


def test_every_missing_or_misshapen_tensor_is_named(parts: Any, made: Made) -> None:
    assert not made().unused_weights
    for name in set(parts[1]) - {"d2t"}:
        key = name.replace(".", "__")
        with pytest.raises(ModelFormatError, match="no output for them" if name == "output.weight" else name):
            made(**{key: None})
        with pytest.raises(ModelFormatError, match=f"{name} has shape"):
            made(**{key: "f32"})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"block_count": 2}, r"no tensor blk\.1\.attn_norm\.weight"),
        ({"fc_norm": True}, r"no tensor enc\.0\.norm\.weight"),
        ({"target_layers": []}, r"target_layers are the numbers of blocks, got \[\]"),
        ({"target_layers": ["a"]}, "target_layers are the numbers of blocks"),
        ({"target_layers": np.array([0.5, 1.5, 2.5], np.float32)}, "target_layers are the numbers of blocks"),
        ({"target_layers": np.array([1, 2], np.int32)}, "fc.weight has shape"),
        ({"target_hidden_size": 2**32 - 1}, "it drafts for a model with 4294967295 numbers a token, not for 64"),
        ({"target_hidden_size": 0}, "it drafts for a model with 0 numbers a token, not for 64"),
        ({"embedding_length": 128}, "has shape"),
        ({"norm_before_fc": True}, "no tensor enc.output_norm.weight, and norm_before_fc is on"),
        ({"attention.head_count": 3}, "head_count 3 is no multiple"),
    ],
)
def test_keys_that_do_not_fit_are_refused(made: Made, keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        made(keys)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"d2t": None}, r"output.weight has shape \[64, 200\]"),
        ({"d2t": "f32"}, r"d2t is a list of tokens, and has \[3, 5, 7\] elements of type f32"),
        ({"d2t": "i32"}, r"d2t is a list of tokens, and has \[10, 20\] elements"),
        ({"token_embd__weight": "f32"}, "token_embd.weight has shape"),
    ],
)
def test_tokens_that_are_none_are_refused(made: Made, tensors: dict[str, str | None], expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        made(**tensors)


@pytest.mark.parametrize(("token", "shown"), [(320, "320"), (-1, "-1"), (2**40, str(2**40))])
def test_tokens_that_the_model_does_not_have_are_refused(parts: Any, made: Made, token: int, shown: str) -> None:
    tokens = np.arange(200, dtype=np.int64)
    parts[3]["i64"].set(np.where(tokens == 7, token, tokens))
    with pytest.raises(ModelFormatError, match=rf"d2t names tokens from .*{shown}.*, and the model has 320"):
        made(d2t="i64")
