"""Files whose part that reads images is damaged: an error of ours when they are loaded or read, never anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from ollama_engine import SamplingParams
from ollama_engine.errors import ModelFormatError, NoMemoryError, ShapeError
from ollama_engine.models.gemma3.multimodal import Gemma3Multimodal
from tests.models.vision import harness
from tests.models.vision.harness import Case, cases
from tests.models.vision.pictures import Picture
from tests.support.mmproj import changed
from tests.support.suite import slow_except

pytest.importorskip("PIL", reason="Pillow is not installed")

FAMILIES = tuple({case.model: case for case in cases()}.values())
PROMPT = ("Look: ", Picture(40, 30, 1), Picture(7, 50, 2), "?")

AROUND = (
    "image_start_token_id", "image_end_token_id", "vision_start_token_id", "vision_end_token_id",
    "image_break_token_index", "image_end_token_index",
)  # fmt: skip

each_case = pytest.mark.parametrize("case", slow_except(FAMILIES, "gemma3"), ids=str)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("damaged"))


def answer(case: Case, path: Path) -> tuple[int, ...]:
    with harness.engine(path, num_ctx=256, batch_size=32) as engine:
        return engine.generate(case.segments(PROMPT), SamplingParams(temperature=0, max_tokens=2)).tokens


def architecture(path: Path) -> str:
    found: str = GGUFReader(path).fields["general.architecture"].contents()
    return found


@each_case
@pytest.mark.parametrize("id_", [5000, 2**32 - 1])
def test_tokens_around_an_image_that_have_no_embedding(case: Case, id_: int, folder: Path) -> None:
    """They ended other requests of the step, or raised OverflowError."""
    path = harness.converted(case, folder)
    arch = architecture(path)
    for name in sorted({f"{arch}.{key}" for key in AROUND} & GGUFReader(path).fields.keys()):
        target = changed(path, folder / "tokens.gguf", {name: id_})
        with pytest.raises(ModelFormatError):
            answer(case, target)


@each_case
def test_a_deviation_of_0_is_refused(case: Case, folder: Path) -> None:
    path = harness.converted(case, folder)
    target = changed(path, folder / "std.gguf", {f"{architecture(path)}.vision.image_std": [0.5, 0.0, 0.5]})
    with pytest.raises(ModelFormatError, match="image_std is above 0"):
        answer(case, target)


@each_case
@pytest.mark.parametrize("kind", [np.int8, np.int32, np.float64])
def test_weights_of_types_that_cannot_be_multiplied_with(case: Case, kind: Any, folder: Path) -> None:
    """They ended the process where the CPU has AMX."""
    path = harness.converted(case, folder)
    read = {t.name: t for t in GGUFReader(path).tensors}
    # Gemma 4's 12B model has no blocks.
    first = next((n for n in ("v.blk.0.attn_q", "v.blk.0.attn_qkv") if f"{n}.weight" in read), "v.patch_embd")
    tensors = {name: tensor for name, tensor in read.items() if name.startswith(first)}
    new = {name: np.zeros(tensor.data.shape, kind) for name, tensor in tensors.items()}
    assert new
    with pytest.raises((ModelFormatError, ShapeError)):
        answer(case, changed(path, folder / "types.gguf", {}, new))


def test_a_largest_image_beyond_all_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's MemoryError is no EngineError. A file can ask for any number of tiles."""

    def largest(self: object) -> None:
        np.zeros(1 << 60, np.uint8)

    case = next(case for case in FAMILIES if case.name == "gemma3")
    monkeypatch.setattr(Gemma3Multimodal, "largest_image", largest)
    with pytest.raises(NoMemoryError, match="the largest image that the file allows"):
        answer(case, harness.converted(case, folder))
