"""DeepSeek-OCR beside what all families are compared by: folders as published, others' files, files that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from ollama_engine import Media, Text
from ollama_engine.convert import convert_model
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.models.deepseek_ocr.preprocess import MOST_TILES
from ollama_engine.models.deepseek_ocr.vision import ENCODER_EPS
from tests.models.vision import harness
from tests.models.vision.deepseek_ocr import CASES, ENCODER, MOST, SAM, TILE
from tests.models.vision.harness import greedy
from tests.models.vision.pictures import Picture
from tests.support.mmproj import Cut, changed, cut, vision_keys

pytest.importorskip("PIL", reason="Pillow is not installed")

(CASE,) = CASES
SAM_KEYS = ("sam.block_count", "sam.embedding_length", "sam.head_count")
CUT = Cut(
    "deepseekocr",
    vision_keys(
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count", "image_size",
        "attention.layer_norm_epsilon", "patch_size", "image_mean", "image_std", "window_size", "preproc_max_tiles",
        *SAM_KEYS,
    ),
    (),
    text_keys={"image_token_id": None},
)  # fmt: skip
BY_HEART = {"vision.window_size": 3, "vision.tile_size": TILE, "vision.preproc_max_tiles": MOST}
"""What engines of others know without a key, and the tiny model has otherwise."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.converted(CASE, tmp_path_factory.mktemp("deepseek-ocr"))


def answers(model: Path, **options: Any) -> None:
    golden = harness.load(CASE)
    with harness.engine(model, **options) as engine:
        loaded: Any = engine._loaded.model
        assert not loaded.unused_weights
        assert loaded.multimodal.options.norm_eps == ENCODER_EPS
        for name, prompt in CASE.prompts.items():
            answer = engine.generate(CASE.segments(prompt), greedy(CASE))
            assert list(answer.tokens) == golden.answers[name].tokens


def test_a_text_model_and_an_mmproj_file_answer_as_one_file(path: Path, tmp_path: Path) -> None:
    """llama.cpp writes another epsilon than it computes with, and that nothing of a head rotates."""
    text, part = cut(path, tmp_path, CUT)
    keys = {"deepseek2-ocr.vision.tile_size": TILE, "deepseek2-ocr.rope.dimension_count": 0}
    wrong = {"clip.vision.attention.layer_norm_epsilon": 1e-6, "clip.vision.feed_forward_length": 12}
    answers(changed(text, tmp_path / "t.gguf", keys), projector=changed(part, tmp_path / "p.gguf", wrong))


def test_a_file_of_ollama_answers_as_ours(path: Path, tmp_path: Path) -> None:
    reader = GGUFReader(path)
    kept = (
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "expert_count", "expert_used_count", "leading_dense_block_count",
        "vision.block_count", "vision.embedding_length", "vision.image_size", "vision.patch_size",
    )  # fmt: skip
    renamed = {"vision.attention.head_count": "vision.head_count", **{f"vision.{key}": key for key in SAM_KEYS}}
    keys: dict[str, Any] = {"general.architecture": "deepseekocr"}
    for name, stored in reader.fields.items():
        own = name.removeprefix("deepseek2-ocr.")
        if own != name:
            keys[name] = None
        if own in kept or own in renamed:
            keys[f"deepseekocr.{renamed.get(own, own)}"] = stored.contents()
    keys |= {f"deepseekocr.{key}": value for key, value in BY_HEART.items()}
    tensors: dict[str, Any] = {}
    for tensor in reader.tensors:
        name = tensor.name
        for ours, theirs in (
            ("v.sam.pos_embd.weight", "s.position_embd"), ("v.sam.", "s."), (".pre_ln.", ".norm1."),
            (".post_ln.", ".norm2."), ("attn.out.", "attn.proj."), ("attn.pos_h.weight", "attn.rel_pos_h"),
            ("attn.pos_w.weight", "attn.rel_pos_w"), ("v.norm1.", "v.pre_layrnorm."), (".ln1.", ".layer_norm1."),
            (".ln2.", ".layer_norm2."), ("mm.model.fc.", "mm.layers."), ("v.image_newline", "mm.image_newline"),
            ("v.view_seperator", "mm.view_seperator"),
        ):  # fmt: skip
            name = name.replace(ours, theirs)
        if name.startswith("v.blk."):
            for ours, theirs in (("attn_qkv", "self_attn.qkv_proj"), ("attn_out", "self_attn.out_proj"),
                                 ("ffn_up", "mlp.fc1"), ("ffn_down", "mlp.fc2")):  # fmt: skip
                name = name.replace(ours, theirs)
        if name != tensor.name:
            tensors |= {tensor.name: None, name: np.array(tensor.data)}
    answers(changed(path, tmp_path / "theirs.gguf", keys, tensors))


def published() -> dict[str, Any]:
    """The config as DeepSeek writes it."""
    text = dict(CASE.config["text_config"])
    dense = text.pop("mlp_layer_types").count("dense")
    del text["layer_types"]

    def tower(settings: dict[str, Any], *same: str) -> dict[str, Any]:
        names = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
        given = {name: settings[key] for name, key in {**names, **{key: key for key in same}}.items()}
        return given | {key: value for key, value in settings.items() if key not in names.values() and key not in same}

    return {
        "architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseek_vl_v2", "torch_dtype": "float32",
        "image_token_id": CASE.config["image_token_id"], "bos_token_id": 317, "eos_token_id": 318,
        "language_config": {**text, "first_k_dense_replace": dense, "use_mla": False, "kv_lora_rank": None,
                            "topk_method": "greedy", "architectures": ["DeepseekV2ForCausalLM"]},
        "vision_config": {"image_size": SAM["image_size"], "model_name": "deeplip_b_l", "width": {
            "sam_vit_b": tower(SAM, "global_attn_indexes", "downsample_channels"),
            "clip-l-14-224": tower(ENCODER, "image_size", "patch_size"),
        }},
    }  # fmt: skip


def test_a_folder_as_deepseek_published_it_becomes_the_same_file(path: Path, tmp_path: Path) -> None:
    golden = harness.load(CASE)
    weights = CASE.weights(golden.shapes) | {
        "model.vision_model.embeddings.patch_embedding.weight": np.zeros((48, 3, 4, 4), np.float32)  # never read
    }
    convert_model(CASE.write(tmp_path / "published", published(), weights), tmp_path / "made.gguf", "f32")
    made, known = GGUFReader(tmp_path / "made.gguf"), GGUFReader(path)
    ours, theirs = (
        {n: f.contents() for n, f in file.fields.items() if n.startswith("deepseek2-ocr.")} for file in (made, known)
    )
    head = {f"deepseek2-ocr.attention.{name}_length": 16 for name in ("key", "value")}  # only transformers says it
    assert ours | head == theirs
    assert [tensor.name for tensor in made.tensors] == [tensor.name for tensor in known.tensors]
    assert "message['content']" in made.fields["tokenizer.chat_template"].contents()


def test_a_window_that_spares_the_prompt_is_refused(tmp_path: Path) -> None:
    golden = harness.load(CASE)
    text = golden.config["text_config"] | {"layer_types": ["reference_sliding_attention"] * 3}
    folder = CASE.write(tmp_path / "unlimited", golden.config | {"text_config": text}, CASE.weights(golden.shapes))
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        convert_model(folder, tmp_path / "made.gguf")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vision.tile_size": 40}, r"tile_size is 40, .* expected multiples of 16"),
        ({"vision.sam.head_count": 3}, r"embeddings of 32, 3 heads"),
        ({"vision.window_size": 17}, r"windows of 17; .* windows of 1 to 16"),
        ({"vision.window_size": 4}, r"attn\.pos_h\.weight has shape \[16, 5\]"),
        ({"vision.embedding_length": 24}, r"makes hidden states of 48; .* and 24"),
        ({"vision.preproc_max_tiles": 1}, r"preproc_min_tiles is 2 and preproc_max_tiles 1"),
        ({"vision.preproc_max_tiles": MOST_TILES + 1}, r"preproc_max_tiles 17; expected 1 to 16"),
        ({"expert_gating_func": 2}, r"expert_gating_func 2 is 1"),
    ],
)
def test_files_that_say_what_cannot_be(keys: dict[str, Any], message: str, path: Path, tmp_path: Path) -> None:
    wrong = changed(path, tmp_path / "wrong.gguf", {f"deepseek2-ocr.{key}": value for key, value in keys.items()})
    with pytest.raises(ModelFormatError, match=message):
        harness.engine(wrong)


def test_as_many_tiles_as_may_be_are_loaded(path: Path, tmp_path: Path) -> None:
    most = changed(path, tmp_path / "most.gguf", {"deepseek2-ocr.vision.preproc_max_tiles": MOST_TILES})
    with harness.engine(most, num_ctx=2048) as engine:
        prompt = [Media(Picture(TILE, TILE * MOST_TILES).file), Text("a")]
        assert len(engine.generate(prompt, max_tokens=1).tokens) == 1
