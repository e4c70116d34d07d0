"""Embedders and rerankers as they are published: what is put before a text, what comes behind the pooling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Theirs

from ollama_engine import Engine
from ollama_engine.convert import convert_model
from ollama_engine.errors import ConfigError, ContextOverflowError, UnsupportedModelError
from ollama_engine.runner.embed.tokenized_text import TokenizedText
from tests.convert.folders import bpe_tokenizer, write_json
from tests.models import encoders, families, test_dialects
from tests.models.cases import difference
from tests.models.families import N_VOCAB
from tests.support.tiny import SPECIALS

CPU: dict[str, Any] = {"threads": 1, "gpu_layers": 0}
CASE = "gemma-embedding-dense"
PROMPTS = {"query": "find: ", "document": "keep: "}
YES, NO = N_VOCAB - len(SPECIALS) - 2, N_VOCAB - len(SPECIALS) - 1
"""Ids that those answers get in `reranker_tokenizer`."""
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
QUERY, DOCUMENTS = "what is it", ["a small thing", "no"]


# -- EmbeddingGemma ----------------------------------------------------------------------------------------------------


def source(path: Path, prompts: Mapping[str, Any] | None = None) -> Path:
    case = encoders.case(CASE)
    golden = encoders.load(case)
    folder = case.write(path, golden.config, case.weights(golden.shapes))
    if prompts is not None:
        write_json(folder / "config_sentence_transformers.json", prompts)
    return folder


def test_ollamas_names_of_embeddinggemma(tmp_path: Path) -> None:
    known = encoders.converted(encoders.case(CASE), tmp_path)
    keys = {"rope.freq_base_swa": "rope.local.freq_base", "rope.freq_base": "rope.global.freq_base",
            **dict.fromkeys(("attention.causal", "dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in",
                             "dense_3_feat_out"))}  # fmt: skip

    def rename(name: str) -> str:
        return name.replace("dense_2", "dense.0").replace("dense_3", "dense.1")

    test_dialects.rewrite(known, tmp_path / "theirs.gguf", test_dialects.Theirs(CASE, "gemma3", keys, rename=rename))
    texts = ["it is a small thing", "a"]
    with Engine(known, **CPU) as ours, Engine(tmp_path / "theirs.gguf", **CPU) as theirs:
        assert theirs.info.architecture == "gemma3"
        assert not theirs.info.generates
        np.testing.assert_array_equal(ours.embed(texts), theirs.embed(texts))


def test_dense_layers_are_left_out_of_vectors_of_tokens(tmp_path: Path) -> None:
    case = encoders.case(CASE)
    expected = encoders.load(case)
    with Engine(encoders.converted(case, tmp_path), **CPU) as engine:
        (tokens,) = engine.embeddings([case.prompt], pooling="none", normalize=False)
        assert difference(tokens.vector.mean(axis=0), expected.mean) <= case.tolerance
        short = engine.embed(case.prompt, dimensions=16)
    cut = case.projected(expected.mean)[:16]
    assert difference(short, cut / np.linalg.norm(cut)) <= case.tolerance


def test_dense_layers_with_an_activation_are_refused(tmp_path: Path) -> None:
    folder = source(tmp_path / "source")
    write_json(folder / "2_Dense" / "config.json", {"activation_function": "torch.nn.modules.activation.Tanh"})
    with pytest.raises(UnsupportedModelError, match="activation_function is Tanh; supported: Identity"):
        convert_model(folder, tmp_path / "made.gguf", "f32")


# -- prompts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", [None, "document"])
def test_prompts(default: str | None, tmp_path: Path) -> None:
    convert_model(
        source(tmp_path / "source", {"prompts": PROMPTS, "default_prompt_name": default}), tmp_path / "a.gguf", "f32"
    )
    with Engine(tmp_path / "a.gguf", **CPU) as engine:
        plain = {name: engine.embed(text + "a thing", prompt_name="") for name, text in PROMPTS.items()}
        for name, vector in plain.items():
            np.testing.assert_array_equal(engine.embed("a thing", prompt_name=name), vector)
            (same,) = engine.embeddings(["a thing"], prompt_name=name)
            np.testing.assert_array_equal(same.vector, vector)
        without = engine.embed("a thing", prompt_name="")
        np.testing.assert_array_equal(engine.embed("a thing"), without if default is None else plain[default])
        ids = engine.tokenize("a thing")
        np.testing.assert_array_equal(engine.embed(ids, prompt_name="query"), without)
        with pytest.raises(ConfigError, match="prompt_name is 'passage', but this model has query, document"):
            engine.embed("a", prompt_name="passage")


def test_a_file_without_prompts(tmp_path: Path) -> None:
    told = "prompt_name is 'query', but this model's file has no prompts"
    with (
        Engine(encoders.converted(encoders.case(CASE), tmp_path), **CPU) as engine,
        pytest.raises(ConfigError, match=told),
    ):
        engine.embed("a", prompt_name="query")


# -- Jina 3 ------------------------------------------------------------------------------------------------------------

TASKS = ("find", "keep", "sort")
RANK, ALPHA = 4, 2.0


def published_adapters(path: Path) -> tuple[Path, dict[str, Path]]:
    """Jina 3 with its adapters as it is published, and for each task a folder whose weights have them added."""
    case = encoders.case("jina-bert-v3")
    golden = encoders.load(case)
    base = {name: values for name, values in case.weights(golden.shapes).items() if not name.startswith("pooler.")}
    published: dict[str, Any] = {}
    merged: dict[str, dict[str, Any]] = {task: dict(base) for task in TASKS}
    rng = np.random.default_rng(3)
    for name, values in base.items():
        if values.ndim != 2:
            published[f"roberta.{name}"] = values
            continue
        stem = f"roberta.{name.removesuffix('weight')}parametrizations.weight."
        published[stem + "original"] = values
        out, into = values.shape
        shapes = [(RANK, into), (out, RANK)] if "embeddings" not in name else [(out, RANK), (RANK, into)]
        a, b = (rng.standard_normal((len(TASKS), *shape)).astype(np.float32) * np.float32(0.2) for shape in shapes)
        published |= {stem + "0.lora_A": a, stem + "0.lora_B": b}
        for i, task in enumerate(TASKS):
            product = a[i] @ b[i] if "embeddings" in name else b[i] @ a[i]
            merged[task][name] = values + np.float32(ALPHA / RANK) * product
    config = {key: value for key, value in golden.config.items() if key != "rope_parameters"} | {
        "architectures": ["XLMRobertaModel"], "lora_adaptations": list(TASKS), "lora_rank": RANK, "lora_alpha": ALPHA,
        "rotary_emb_base": golden.config["rope_parameters"]["rope_theta"], "position_embedding_type": "rotary",
        "task_instructions": {"find": "find: "},
    }  # fmt: skip
    folders = {task: case.write(path / task, golden.config, weights) for task, weights in merged.items()}
    return case.write(path / "published", config, published), folders


def test_adapters_by_task_compute_what_merged_weights_do(tmp_path: Path) -> None:
    """Those without adapters are compared with transformers; texts of several tasks share batches."""
    case = encoders.case("jina-bert-v3")
    folder, merged = published_adapters(tmp_path)
    convert_model(folder, tmp_path / "made.gguf", "f32")
    expected = {}
    for task, source in merged.items():
        convert_model(source, tmp_path / f"{task}.gguf", "f32")
        with case.engine(tmp_path / f"{task}.gguf") as engine:
            expected[task] = engine.embed(case.prompt, normalize=False)
            if task == "find":
                prompted = engine.embed("find: a thing")
    with case.engine(tmp_path / "made.gguf") as engine:
        assert difference(engine.embed(case.prompt, normalize=False), encoders.load(case).mean) <= case.tolerance
        for task, vector in expected.items():
            assert difference(engine.embed(case.prompt, task=task, normalize=False), vector) <= case.tolerance
        assert difference(engine.embed("a thing", task="find"), prompted) <= case.tolerance
        assert difference(engine.embed("find: a thing", task="find", prompt_name=""), prompted) <= case.tolerance
        texts = [TokenizedText(np.array(case.prompt, np.int32), "mean", 0, adapter=i) for i in range(len(TASKS) + 1)]
        together = engine._embedding()._batcher._embedder.compute(texts)
        for found, vector in zip(together[1:], expected.values(), strict=True):
            assert difference(np.asarray(found), vector) <= case.tolerance
        with pytest.raises(ConfigError, match="task is 'seek', but this model has find, keep, sort"):
            engine.embed("a", task="seek")


# -- Qwen3 -------------------------------------------------------------------------------------------------------------


def reranker_tokenizer() -> dict[str, Any]:
    """A byte-level vocabulary with the two answers, which two pairs of letters make room for."""
    tokenizer = bpe_tokenizer(N_VOCAB)
    model = tokenizer["model"]
    names = {YES: "yes", NO: "no"}
    model["vocab"] = {names.get(id_, text): id_ for text, id_ in model["vocab"].items() if text not in names.values()}
    model["merges"] = model["merges"][:-2]
    tokenizer["post_processor"] = None
    tokenizer["pre_tokenizer"]["pretokenizers"][-1]["trim_offsets"] = False
    tokenizer["added_tokens"] = [{**encoders.MARK, **entry} for entry in tokenizer["added_tokens"]]
    return tokenizer


def qwen3(path: Path, name: str, tokenizer: dict[str, Any], **config: Any) -> Path:
    """The folder of a case, with the names of sentence-transformers' checkpoints."""
    case = families.case(name)
    golden = families.load(case)
    weights = {key.removeprefix("model."): values for key, values in case.weights(golden.shapes).items()}
    families.write_folder(path, {**golden.config, **config}, weights, case.dtype)
    write_json(path / "tokenizer.json", tokenizer)
    return path


def test_qwen3_embedding_ends_each_text_and_takes_its_last_token(tmp_path: Path) -> None:
    case = families.case("qwen3")
    golden = families.load(case)
    tokenizer = bpe_tokenizer(N_VOCAB)
    end = {"id": SPECIALS[1], "type_id": 0}
    tokenizer["post_processor"]["single"] = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": end}]
    folder = qwen3(tmp_path / "source", "qwen3", tokenizer)
    write_json(folder / "tokenizer_config.json", {"eos_token": SPECIALS[1]})
    encoders.write_modules(folder, "lasttoken")
    convert_model(folder, tmp_path / "made.gguf", "f32")
    with Engine(tmp_path / "made.gguf", **CPU) as engine:
        assert engine.info.pooling == "last"
        assert engine.tokenize("ab") == [*engine.tokenize("ab", add_special=False), N_VOCAB - 2]
        vector = engine.embed(case.prompt, normalize=False)
    output = case.weights(golden.shapes)["lm_head.weight"]
    assert golden.rows[-1] == len(case.prompt) - 1
    assert difference(output @ vector, golden.logits[-1]) <= case.tolerance


def expected_scores(folder: Path, path: Path, query: str, documents: list[str]) -> list[float]:
    """Probabilities of "yes", by the logits of the model that writes, for the ids of the `tokenizers` library."""
    theirs = Theirs.from_file(str(folder / "tokenizer.json"))
    scores = []
    with Engine(path, num_ctx=1024, kv_cache_type="f32", **CPU) as engine:
        for document in documents:
            text = TEMPLATE.replace("{query}", query).replace("{document}", document)
            yes, no = engine.logits(theirs.encode(text).ids)[-1][[YES, NO]]
            scores.append(1 / (1 + np.exp(no - yes)))
    return scores


@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied-bf16"])
def test_qwen3_reranker_gives_the_probability_of_yes(name: str, tmp_path: Path) -> None:
    folder = qwen3(tmp_path / "Qwen3-Reranker-0.6B", name, reranker_tokenizer())
    writer = qwen3(tmp_path / "writer", name, reranker_tokenizer())
    convert_model(folder, tmp_path / "ranks.gguf", "f32")
    convert_model(writer, tmp_path / "writes.gguf", "f32")
    with Engine(tmp_path / "ranks.gguf", num_ctx=1024, **CPU) as engine:
        scores = engine.rank(QUERY, DOCUMENTS)
        alone = [engine.rank(QUERY, [document])[0] for document in DOCUMENTS]
        with pytest.raises(ConfigError, match=r"this model ranks documents \(Engine.rank\)"):
            engine.embed("a")
    expected = expected_scores(folder, tmp_path / "writes.gguf", QUERY, DOCUMENTS)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    np.testing.assert_allclose(scores, alone, atol=1e-6)
    assert abs(scores[0] - scores[1]) > 1e-3


def test_texts_to_rank_bring_no_control_tokens_and_documents_lose_their_end(tmp_path: Path) -> None:
    folder = qwen3(tmp_path / "source", "qwen3", reranker_tokenizer())
    (folder / "README.md").write_text("# Qwen3-Reranker-0.6B\n")
    convert_model(folder, tmp_path / "ranks.gguf", "f32")
    with Engine(tmp_path / "ranks.gguf", num_ctx=360, **CPU) as engine:
        texts = engine._embedding()._texts

        def tokens(query: str, document: str) -> list[int]:
            (pair,) = texts.pairs(query, [document], "truncate", False, None)
            return pair.tokens.tolist()

        assert not set(tokens(SPECIALS[2], SPECIALS[2])) & set(range(N_VOCAB - len(SPECIALS), N_VOCAB))
        short, long = tokens(QUERY, ""), tokens(QUERY, "a b c " * 200)
        assert len(short) < len(long) == 360
        behind = TEMPLATE.partition("{document}")[2]
        assert engine.detokenize(long).endswith("a b" + behind) or engine.detokenize(long).endswith(behind)
        with pytest.raises(ContextOverflowError, match="num_ctx is 360"):
            engine.rank(QUERY, ["a b c " * 200])
        with pytest.raises(ContextOverflowError, match="no token of a text has room"):
            engine.rank("a b c " * 20, ["a"], on_overflow="truncate")


def test_qwen3_with_a_head_of_one_score(tmp_path: Path) -> None:
    """As sentence-transformers' checkpoints have it: the difference of two rows as one, and the score as it is."""
    case = families.case("qwen3")
    golden = families.load(case)
    weights = case.weights(golden.shapes)
    output = weights.pop("lm_head.weight")
    weights["score.weight"] = output[[YES]] - output[[NO]]
    config = {**golden.config, "architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    folder = families.write_folder(tmp_path / "source", config, weights, "F32")
    write_json(folder / "tokenizer.json", reranker_tokenizer())
    convert_model(folder, tmp_path / "ranks.gguf", "f32")
    writer = qwen3(tmp_path / "writer", "qwen3", reranker_tokenizer())
    convert_model(writer, tmp_path / "writes.gguf", "f32")
    with Engine(tmp_path / "ranks.gguf", num_ctx=1024, **CPU) as engine:
        scores = engine.rank(QUERY, DOCUMENTS)
    expected = expected_scores(writer, tmp_path / "writes.gguf", QUERY, DOCUMENTS)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores)), expected, atol=1e-5)
