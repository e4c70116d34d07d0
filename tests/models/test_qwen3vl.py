"""Qwen3-VL and Qwen3.5 beside what all families are compared by: files of others, deepstack's rows, sizes that lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.qwen3vl.multimodal import Qwen3VLMultimodal
from ollama_engine.models.qwen3vl.preprocess import around
from ollama_engine.models.sections import read_turns
from tests.models.llama_cpp_converter import convert_all, recorded, sources, written
from tests.models.reference import import_reference
from tests.models.vision import harness
from tests.models.vision.harness import cases, greedy
from tests.models.vision.pictures import Picture
from tests.models.vision.reference import VisionReference
from tests.support.mmproj import Cut, changed, cut, vision_keys

pytest.importorskip("PIL", reason="Pillow is not installed")

CASES = {case.name: case for case in cases() if case.name.startswith(("qwen3vl", "qwen35"))}
IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
DEEPSTACK = (0, 2)
"""The tower's blocks that give features."""

CUT = Cut(
    "qwen3vl_merger",
    {
        **vision_keys(
            "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
            "attention.layer_norm_epsilon", "patch_size", "image_mean", "image_std", "spatial_merge_size",
        ),
        "vision.shortest_edge": "vision.image_min_pixels",
        "vision.longest_edge": "vision.image_max_pixels",
    },
    (
        (r"v\.patch_embed\.bias", r"v.patch_embd.bias"),
        (r"v\.pos_embed\.weight", r"v.position_embd.weight"),
        (r"v\.blk\.(\d+)\.norm(\d)\.(.*)", r"v.blk.\1.ln\2.\3"),
        (r"v\.blk\.(\d+)\.mlp\.linear_fc1\.(.*)", r"v.blk.\1.ffn_up.\2"),
        (r"v\.blk\.(\d+)\.mlp\.linear_fc2\.(.*)", r"v.blk.\1.ffn_down.\2"),
        *((rf"v\.deepstack_merger\.{k}\.norm\.(.*)", rf"v.deepstack.{i}.norm.\1") for k, i in enumerate(DEEPSTACK)),
        *((rf"v\.deepstack_merger\.{k}\.linear_fc(\d)\.(.*)", rf"v.deepstack.{i}.fc\1.\2")
          for k, i in enumerate(DEEPSTACK)),
        (r"v\.merger\.norm\.(.*)", r"v.post_ln.\1"),
        (r"v\.merger\.linear_fc1\.(.*)", r"mm.0.\1"),
        (r"v\.merger\.linear_fc2\.(.*)", r"mm.2.\1"),
    ),
    text_keys={"mrope_sections": None, **dict.fromkeys(IDS)},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("qwen3vl"))


def architecture(path: Path) -> str:
    found: str = GGUFReader(path).fields["general.architecture"].contents()
    return found


def two_frames_and_one_matrix(path: Path, target: Path) -> Path:
    """The kernel as two flat ones, and queries, keys and values as one matrix: as llama.cpp's converter writes them."""
    tensors = {t.name: np.array(t.data) for t in GGUFReader(path).tensors}
    kernel, n = tensors["v.patch_embed.weight"], len(tensors["v.patch_embed.bias"])
    frames = kernel.reshape(n, -1, *kernel.shape[1:])
    new: dict[str, Any] = {"v.patch_embed.weight": None, "v.patch_embd.weight": np.ascontiguousarray(frames[:, :, 0]),
                           "v.patch_embd.weight.1": np.ascontiguousarray(frames[:, :, 1])}  # fmt: skip
    for name in tensors:
        if name.startswith("v.blk.") and ".attn_q." in name:
            parts = [name.replace("attn_q", f"attn_{part}") for part in "qkv"]
            new |= dict.fromkeys(parts)
            new[name.replace("attn_q", "attn_qkv")] = np.concatenate([tensors[part] for part in parts])
    return changed(path, target, {}, new)


@pytest.mark.parametrize("name", CASES)
def test_a_text_model_and_an_mmproj_file_answer_as_one_file(name: str, folder: Path, tmp_path: Path) -> None:
    """The tokens around images have no keys there: they are found by their text."""
    case = CASES[name]
    whole = two_frames_and_one_matrix(harness.converted(case, folder), tmp_path / f"{name}.gguf")
    text, part = cut(whole, tmp_path, CUT)
    names = {t.name for t in GGUFReader(part).tensors}
    assert {"v.patch_embd.weight.1", "v.blk.1.attn_qkv.weight", "mm.2.bias"} <= names
    assert ("v.deepstack.2.fc1.weight" in names) == name.startswith("qwen3vl")
    golden = harness.load(case)
    with harness.engine(text, projector=part) as engine:
        for prompt_name, prompt in case.prompts.items():
            answer = engine.generate(case.segments(prompt), greedy(case))
            assert list(answer.tokens) == golden.answers[prompt_name].tokens


def test_that_mmproj_file_is_llama_cpps(folder: Path, tmp_path: Path) -> None:
    """Its tensors are to the bit what llama.cpp's converter writes of the same folder, and so are the keys that it has.

    That one says no limits of pixels: those of published models are known here.
    """
    whole = two_frames_and_one_matrix(harness.converted(CASES["qwen35"], folder), tmp_path / "whole.gguf")
    ours, theirs = written(cut(whole, tmp_path, CUT)[1]), recorded("qwen35-mmproj")
    assert ours["tensors"] == theirs["tensors"]
    lacking = {f"clip.vision.image_{most}_pixels" for most in ("min", "max")}
    assert {key for key, value in ours["keys"].items() if theirs["keys"].get(key) != value} == lacking


@pytest.mark.skipif(sources() is None, reason="llama.cpp's sources are not there: python bench/peers.py build")
@pytest.mark.slow
@pytest.mark.timeout(300)  # it imports torch
def test_llama_cpps_converter_writes_what_was_recorded(folder: Path, tmp_path: Path) -> None:
    """And its file answers beside a text model as transformers does."""
    import_reference()
    made = convert_all(tmp_path)
    for name, path in made.items():
        assert written(path) == recorded(name)
    case = CASES["qwen35"]
    text, ours = cut(harness.converted(case, folder), tmp_path, CUT)
    limits = {key: entry.contents() for key, entry in GGUFReader(ours).fields.items() if key.endswith("_pixels")}
    part = changed(made["qwen35-mmproj"], tmp_path / "limited.gguf", limits)
    with harness.engine(text, projector=part) as engine:
        for prompt_name, prompt in case.prompts.items():
            golden = harness.load(case).answers[prompt_name]
            assert list(engine.generate(case.segments(prompt), greedy(case)).tokens) == golden.tokens


@pytest.mark.parametrize("name", ["qwen3vl", "qwen35"])
def test_a_file_of_ollama_lacks_what_its_engine_knows_by_heart(name: str, folder: Path, tmp_path: Path) -> None:
    """Ids of tokens and the width of the tower; the sections of positions have another name."""
    case, path = CASES[name], harness.converted(CASES[name], folder)
    arch = architecture(path)
    lacking = {f"{arch}.{key}": None for key in (*IDS, "vision.feed_forward_length", "n_deepstack_layers")}
    sections = GGUFReader(path).fields[f"{arch}.rope.dimension_sections"].contents()[:3]
    keys: dict[str, Any] = {f"{arch}.rope.dimension_sections": None, f"{arch}.mrope_sections": None,
                            f"{arch}.rope.mrope_section": sections}  # fmt: skip
    prompt = case.segments(case.prompts["two"])
    with harness.engine(changed(path, tmp_path / "theirs.gguf", {**lacking, **keys})) as engine:
        assert list(engine.generate(prompt, greedy(case)).tokens) == harness.load(case).answers["two"].tokens


def test_rows_of_a_picture_have_features_behind_their_embedding(folder: Path) -> None:
    """The cache of embeddings counts them, and a session's file has them."""
    case = CASES["qwen3vl"]
    picture = Picture(40, 24)
    with harness.engine(harness.converted(case, folder)) as engine:
        model: Any = engine._loaded.model
        assert isinstance(model.multimodal, Qwen3VLMultimodal)
        assert model.multimodal.traits.deepstack == len(DEEPSTACK)
        n = model.multimodal.preprocess(picture.draw()).n_inputs
        engine.generate(case.segments((picture, "?")), greedy(case))
        assert engine.metrics.image_cache_bytes == 4 * n * model.n_embd * (1 + len(DEEPSTACK))


def test_a_session_with_features_is_opened_without_its_pictures(folder: Path, tmp_path: Path) -> None:
    case = CASES["qwen3vl"]
    prompt = case.segments(case.prompts["two"])
    expected = harness.load(case).answers["two"].tokens
    with harness.engine(harness.converted(case, folder)) as engine, engine.session() as session:
        session.append(prompt)
        session.save(tmp_path / "session")
    engine = harness.engine(harness.converted(case, folder))
    with engine, engine.load_session(tmp_path / "session") as session:
        assert list(session.generate(greedy(case)).tokens) == expected
        session.rewind(len(expected))
        assert list(session.generate(greedy(case)).tokens) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n_deepstack_layers": 3}, r"features for 2 layers, and the text model takes them for 3 of its 4 "),
        ({"vision.deepstack_visual_indexes": [0, 4]}, r"\[0, 4\], expected different numbers of blocks below 4"),
        ({"vision.deepstack_visual_indexes": [2, 2]}, r"\[2, 2\], expected different numbers of blocks below 4"),
        ({"vision.deepstack_visual_indexes": [0, 1, 2], "n_deepstack_layers": 3}, r"no tensor v\.deepstack_merger\.2"),
        ({"vision.spatial_merge_size": 0}, r"spatial_merge_size is 0"),
        ({"vision.attention.head_count": 24}, r"heads of the vision tower have 2 dimensions"),
        ({"rope.dimension_sections": [6, 10], "mrope_sections": None}, r"\[6, 10\]; expected 3 or 4 numbers of pairs"),
    ],
)  # fmt: skip
def test_files_that_contradict_themselves(keys: dict[str, Any], message: str, folder: Path, tmp_path: Path) -> None:
    path = harness.converted(CASES["qwen3vl"], folder)
    broken = changed(path, tmp_path / "broken.gguf", {f"qwen3vl.{key}": value for key, value in keys.items()})
    with pytest.raises(ModelFormatError, match=message):
        harness.engine(broken)


def test_a_table_of_positions_that_is_no_square(folder: Path, tmp_path: Path) -> None:
    path = harness.converted(CASES["qwen3vl"], folder)
    table = np.zeros((35, 48), np.float32)
    broken = changed(path, tmp_path / "broken.gguf", {}, {"v.pos_embed.weight": table})
    with pytest.raises(ModelFormatError, match=r"has 35 rows, expected a square number"):
        harness.engine(broken)


@pytest.mark.parametrize("name", ["qwen3vl", "qwen3vlmoe"])
def test_embeddings_of_texts_are_the_last_hidden_state(name: str, folder: Path, tmp_path: Path) -> None:
    """As Qwen3-VL-Embedding makes them."""
    torch, _ = import_reference()
    reference = VisionReference(CASES[name], tmp_path)
    ids = reference.processor.tokenizer("a cat on a mat", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        expected = reference.model.model(input_ids=ids).last_hidden_state[0, -1].numpy()
    with harness.engine(harness.converted(CASES[name], folder)) as engine:
        found = engine.embed([int(i) for i in ids[0]])
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-6)


@pytest.mark.parametrize(("n", "side"), [(1, 6), (2, 6), (6, 6), (17, 6), (5, 48), (96, 48), (3, 1)])
def test_a_grid_is_stretched_over_the_table_corner_to_corner(n: int, side: int) -> None:
    (before, near), (behind, far) = around(np.arange(n, dtype=np.int32), n, side)
    np.testing.assert_allclose(near + far, 1, atol=1e-6)
    np.testing.assert_allclose(before * near + behind * far, np.linspace(0, side - 1, n), atol=1e-4)
    assert 0 <= before.min() <= behind.max() < side


@pytest.mark.parametrize(
    ("sections", "pairs", "expected"),
    [
        ([24, 20, 20], 64, (24, 20, 20)),
        ([11, 11, 10, 0], 32, (11, 11, 10)),
        ([11, 11, 10], 4, (2, 1, 1)),  # transformers' default with heads that are shorter
        ([24, 20, 20], 32, (11, 11, 10)),
        ([0, 2, 0], 8, (6, 2, 0)),
    ],
)
def test_time_turns_all_pairs_that_no_other_axis_takes(
    sections: list[int], pairs: int, expected: tuple[int, ...]
) -> None:
    assert read_turns(Metadata({"a.sections": sections}, "a"), "sections", pairs, ()) == expected
    frequencies = np.zeros(pairs, int)
    for axis in (1, 2):
        frequencies[axis : 3 * sections[axis] : 3] = axis  # as Qwen3VLTextRotaryEmbedding
    assert tuple(np.bincount(frequencies, minlength=3)) == expected
