"""`show`: facts of models, of vocabularies alone, of files that cannot be run here; for people and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import pytest

from bench.make_recurrent import write_recurrent
from ollama_engine import Engine, demo
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.bench.test_make_recurrent import small
from tests.cli.program import imported_by, json_of
from tests.support.gguf_files import write_and_close
from tests.support.tiny import write_tiny_llama

KEYS = {
    "path", "files", "file_bytes", "gguf_version", "architecture", "name", "license", "shape", "images", "head",
    "n_tensors", "n_parameters", "tensor_bytes", "types", "tokenizer", "chat_template",
}  # fmt: skip


def shown(cli, *args: str) -> dict[str, Any]:
    return json_of(cli, "show", *args)


def test_facts_of_a_model(cli, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", dtype="q8_0", metadata={"tokenizer.chat_template": "{{ x }}"})
    known = shown(cli, model.path)
    assert set(known) == KEYS
    assert (known["architecture"], known["name"], known["files"]) == ("llama", "tiny", 1)
    assert known["file_bytes"] == Path(model.path).stat().st_size
    assert known["n_parameters"] == sum(weight.size for weight in model.weights.values())
    assert known["n_tensors"] == len(model.weights)
    assert list(known["types"]) == ["q8_0", "f32"]
    for name in ("tensors", "parameters", "bytes"):
        total = {"tensors": "n_tensors", "parameters": "n_parameters", "bytes": "tensor_bytes"}[name]
        assert sum(sums[name] for sums in known["types"].values()) == known[total]
    assert known["shape"]["context_length"] == 512
    assert known["shape"]["attention.head_count_kv"] == 2
    assert known["tokenizer"] == {
        "model": "gpt2", "pre": "llama-bpe", "n_vocab": 320, "bos_id": 317, "eos_id": 318, "unknown_id": None,
        "eog_ids": [318, 319], "add_bos": True, "add_eos": False,
        "texts": {"317": "<|begin_of_text|>", "318": "<|end_of_text|>", "319": "<|eot_id|>"},
    }  # fmt: skip
    assert known["chat_template"] is True
    assert known["images"] is None


def test_a_model_that_reads_images(cli, tmp_path: Path) -> None:
    sizes = {"image_size": 896, "patch_size": 14, "block_count": 27, "embedding_length": 1152}
    model = write_tiny_llama(tmp_path / "a.gguf", metadata={f"llama.vision.{key}": n for key, n in sizes.items()})
    assert shown(cli, model.path)["images"] == sizes
    row = "reads images    of size 896, in patches of 14, by 27 blocks"
    assert " ".join(row.split()) in " ".join(cli("show", model.path).out.split())
    part = {"clip.vision.patch_size": 14, "clip.vision.block_count": 32, "clip.projector_type": "qwen2.5vl_merger"}
    model = write_tiny_llama(tmp_path / "b.gguf", metadata={**part, "general.architecture": "clip"})
    assert "of any size, in patches of 14, by 32 blocks, projector qwen2.5vl_merger" in cli("show", model.path).out


def test_tensors_and_metadata_are_listed_on_demand(cli, tiny: str) -> None:
    known = shown(cli, tiny, "--tensors", "--metadata")
    assert set(known) == KEYS | {"tensors", "metadata"}
    with GGUFFile(tiny) as file:
        assert [t["name"] for t in known["tensors"]] == list(file.tensors)
        assert known["tensors"][0] == {"name": "token_embd.weight", "type": "f32", "shape": [64, 320], "bytes": 81920}
        assert list(known["metadata"]) == list(file.metadata)
    assert len(known["metadata"]["tokenizer.ggml.tokens"]) == 320


def test_the_page_for_people(cli, tiny: str) -> None:
    result = cli("show", tiny, "--tensors", "--metadata")
    assert (result.code, result.err) == (0, "")
    for line in (
        "architecture             llama",
        "context length           4096",
        "tokenizer                gpt2, llama-bpe, 320 tokens",
        "begin                    317 '<|begin_of_text|>', put before every prompt",
        "ends an answer           318 '<|end_of_text|>', 319 '<|eot_id|>'",
        "chat template            no",
    ):
        assert line in result.out.splitlines()
    assert "... 320 in all]" in result.out
    assert "blk.1.ffn_down.weight" in result.out


def test_the_demo_model(cli) -> None:
    known = shown(cli, "demo")
    assert known["path"] == str(demo.path())
    assert known["architecture"] == "llama"
    assert known["n_tensors"] > 0
    assert "error" not in known["tokenizer"]


def write_metadata(path: Path, architecture: str | None, **values: Any) -> str:
    """Write a GGUF file that has metadata and no tensors."""
    writer = gguf.GGUFWriter(str(path), architecture or "x")
    if architecture is None:
        writer.kv_data[0].clear()
    for key, value in values.items():
        name = key.replace("__", ".")
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_array(name, value)
    write_and_close(writer)
    return str(path)


def test_a_vocabulary_alone(cli, tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", "a"]
    path = write_metadata(
        tmp_path / "vocab.gguf", "llama", tokenizer__ggml__model="llama", tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__scores=[0.0] * 4, tokenizer__ggml__token_type=[2, 3, 3, 1],
    )  # fmt: skip
    known = shown(cli, path)
    assert (known["n_tensors"], known["n_parameters"], known["types"]) == (0, 0, {})
    assert (known["tokenizer"]["model"], known["tokenizer"]["eos_id"]) == ("llama", 2)
    page = cli("show", path, "--tensors")
    assert page.code == 0
    assert "none: a vocabulary only" in page.out


def test_a_file_that_says_nothing(cli, tmp_path: Path) -> None:
    path = write_metadata(tmp_path / "bare.gguf", None, a__name="x")
    known = shown(cli, path)
    assert (known["architecture"], known["tokenizer"], known["shape"]) == (None, None, {})
    page = cli("show", path).out
    assert "not stated" in page
    assert "tokenizer      none" in page


def test_a_tokenizer_that_is_unknown_here(cli, tmp_path: Path) -> None:
    path = write_metadata(tmp_path / "odd.gguf", "llama", tokenizer__ggml__model="runes")
    assert "'runes'" in shown(cli, path)["tokenizer"]["error"]
    assert "runes; cannot be used: " in cli("show", path).out


def test_values_that_json_has_no_words_for(cli, tmp_path: Path) -> None:
    path = write_metadata(
        tmp_path / "x.gguf", "llama", x__nan=math.nan, x__rows=[1.0, math.inf], x__flags=[True, False]
    )
    result = cli("show", path, "--metadata", "--json")
    values = json.loads(result.out, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))["metadata"]
    assert values["x.nan"] == "nan"
    assert values["x.rows"] == [1.0, "inf"]
    assert values["x.flags"] == [True, False]


def test_what_a_file_says_does_not_steer_the_terminal(cli, tmp_path: Path) -> None:
    path = write_metadata(tmp_path / "x.gguf", "llama", general__name="\x1b[2Jgone", x__text="y" * 500)
    page = cli("show", path, "--metadata").out
    assert "\x1b" not in page
    assert "\\x1b[2Jgone" in page
    assert "y ... 500 characters" in page


def test_nothing_is_imported_that_could_load_weights(tiny: str) -> None:
    modules, out = imported_by(["show", tiny])
    assert out.startswith("path")
    assert not modules & {"ollama_engine.ml.graph.backend", "ollama_engine.ml.weights.weights", "ollama_engine.models"}


def test_recurrent_states_are_planned_for(cli, tmp_path: Path) -> None:
    path = str(tmp_path / "lfm2.gguf")
    write_recurrent(path, small("lfm2"), "q8_0")
    (cpu,) = shown(cli, path, "--fit", "--gpu-layers", "0")["devices"]
    (planned,) = Engine.plan_memory(path, parallel=1, gpu_layers=0).devices
    assert cpu["states"] == planned.states > 0
    assert cpu["taken"] == cpu["weights"] + cpu["cache"] + cpu["states"] + cpu["graph"]
    names, row = (line.split() for line in cli("show", path, "--fit").out.splitlines()[:2])
    assert names == ["device", "free", "weights", "cache", "states", "graph", "in", "all", "layers"]
    assert row[0] == "CPU"


SIZES = "expected sizes above 0 with their unit, such as 8GiB,24GiB"


def test_what_fits_where(cli, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", n_expert=4, n_expert_used=2)
    options = ("--fit", "--num-ctx", "64", "--parallel", "1", "--batch-size", "16", "--kv-cache-type", "f32")
    known = shown(cli, model.path, *options, "--gpu-memory", "1GiB,0.5MiB")
    assert (known["gpu_layers"], known["layers"], known["cpu_experts"], known["fits"]) == (3, 3, 0, True)
    first, second, cpu = known["devices"]
    assert (first["name"], first["free"], first["layers"], first["output"]) == ("GPU0", 1 << 30, [0, 1], True)
    assert (second["free"], second["layers"], second["taken"]) == (1 << 19, [], 0)
    assert (cpu["name"], cpu["free"], cpu["layers"], cpu["output"]) == ("CPU", None, [], False)
    assert first["cache"] == 2 * 256 * 2 * 2 * model.config.d * 4, "64 cells are stored as 256"
    experts = shown(cli, model.path, *options, "--gpu-memory", "1G", "--cpu-experts", "1")
    assert experts["devices"][1]["experts"] == [0]
    assert experts["devices"][0]["weights"] < first["weights"]
    demanded = shown(cli, model.path, *options, "--gpu-memory", "100K", "--gpu-layers", "3")
    assert demanded["fits"] is False
    assert demanded["devices"][0]["overfull"] > 0


def test_what_fits_where_for_people(cli, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", n_expert=4, n_expert_used=2)
    result = cli("show", model.path, "--fit", "--gpu-memory", "1TiB", "--cpu-experts", "2")
    assert result.out.splitlines()[0].split() == ["device", "free", "weights", "cache", "graph", "in", "all", "layers"]
    assert result.out.splitlines()[1].split()[:3] == ["GPU0", "1.0", "TiB"]
    assert result.out.splitlines()[1].endswith("0-1, output")
    assert result.out.splitlines()[2].endswith("input, experts of 0-1")
    assert result.out.splitlines()[-3] == "3 of 3 layers on GPUs, experts of 2 of them on the CPU"
    here = cli("show", "demo", "--fit")
    assert (here.code, here.err) == (0, "")
    context, serving = here.out.splitlines()[-2:]
    assert context == "planned for one request at a time (--parallel) with 1024 tokens each (--num-ctx)"
    assert serving.startswith("on top, while serving, at most: graphs that are kept ")
    assert ", texts to embed beyond batch_size " in serving
    told = cli("show", "demo-vision", "--fit").out.splitlines()[-1]
    assert "embeddings of images 512" in told
    assert "prepared images 128.0 MiB" in told
    assert shown(cli, "demo-vision", "--fit")["serving"]["prepared images"] == 128 << 20
    lacking = cli("show", "demo", "--fit", "--gpu-memory", "1MiB", "--gpu-layers", "9")
    assert "\nGPU0 lacks " in lacking.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--num-ctx", "9"), "--num-ctx has no effect without --fit"),
        (("--gpu-memory", "8G"), "--gpu-memory has no effect without --fit"),
        (("--fit", "--gpu-memory", "8 pounds"), f"{SIZES}, got '8 pounds'"),
        (("--fit", "--gpu-memory", "8G,0"), f"{SIZES}, got '8G,0'"),
        (("--fit", "--gpu-memory", "8"), f"{SIZES}, got '8'"),
        (
            ("--fit", "--gpu-memory", "8G", "--device", "CUDA0"),
            "--gpu-memory is for GPUs that are not here, and --device",
        ),
        (("--fit", "--gpu-memory", "8G", "--main-gpu", "1"), "--main-gpu 1 does not exist; GPUs: GPU0"),
    ],
    ids=str,
)
def test_plans_that_cannot_be_made(cli, options: tuple[str, ...], message: str) -> None:
    result = cli("show", "demo", *options)
    assert result.code == 2
    assert message in result.err
