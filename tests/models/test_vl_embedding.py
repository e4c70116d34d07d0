"""Embeddings of texts with images: transformers' hidden states; Qwen3-VL-Embedding's and -Reranker's templates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine import Engine, Media, Text, Tokens
from ollama_engine.convert import convert_model
from ollama_engine.convert.qwen3vl import EMBED, INSTRUCTION, PIXELS, RERANK
from ollama_engine.errors import ConfigError, ContextOverflowError, UnsupportedInputError
from ollama_engine.runner.embed.call import EmbeddingCall
from ollama_engine.runner.embed.task_prompts import Purpose
from ollama_engine.runner.embed.texts import EmbedTexts
from tests.engine.test_embed import counted
from tests.models.cases import difference
from tests.models.vision import harness
from tests.models.vision.harness import TOLERANCE, Case
from tests.models.vision.pictures import Picture
from tests.models.vision.qwen3vl import Qwen3Case
from tests.support.engine_thread import held
from tests.support.mmproj import changed

pytest.importorskip("PIL", reason="Pillow is not installed")

NAMES = ("qwen3vl", "qwen35", "qwen25vl", "idefics3", "internvl", "lfm2-vl")
YES, NO = 290, 291
"""Ids of merged letters, which are answers here."""
SIZES = {"shortest_edge": PIXELS["vision.shortest_edge"], "longest_edge": PIXELS["vision.longest_edge"]}
PICTURE, OTHER = Picture(100, 60), Picture(31, 97, 1)


def case_of(name: str) -> Case:
    return next(case for case in harness.cases() if case.name == name)


def output_of(case: Case) -> NDArray[np.float32]:
    """The matrix of logits, [n_vocab, n_embd]."""
    weights = case.weights(harness.read(case).shapes)
    return next(
        weights[name] for end in ("lm_head.weight", "embed_tokens.weight") for name in weights if name.endswith(end)
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_last_hidden_state_makes_transformers_logits(name: str, tmp_path: Path) -> None:
    """All prompts in one call, beside each other."""
    case = case_of(name)
    golden, output = harness.load(case), output_of(case)
    with harness.engine(harness.converted(case, tmp_path)) as engine:
        segments: Any = [case.segments(prompt) for prompt in case.prompts.values()]
        rows = engine.embed([*segments, "a text"], pooling="last", normalize=False)
        for row, prompt in zip(rows, case.prompts, strict=False):
            assert difference(row @ output.T, golden.answers[prompt].logits[-1]) <= TOLERANCE
        np.testing.assert_allclose(engine.embed("a text", pooling="last", normalize=False), rows[-1], atol=1e-5)


def test_images_whose_rows_see_each_other_are_refused(tmp_path: Path) -> None:
    case = case_of("gemma3")
    told = pytest.raises(UnsupportedInputError, match="gemma3 embeds texts only; leave the images out")
    with harness.engine(harness.converted(case, tmp_path)) as engine, told:
        engine.embed([Text("a"), Media(PICTURE.file)])


# -- the published models ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Published(Qwen3Case):
    """The tiny Qwen3-VL with two answers in its vocabulary, and without a token before a text, as Qwen's."""

    def tokenizer_json(self) -> dict[str, Any]:
        made = super().tokenizer_json()
        model = made["model"]
        texts = {id_: text for text, id_ in model["vocab"].items()} | {YES: "yes", NO: "no"}
        model["vocab"] = {text: id_ for id_, text in texts.items()}
        halves = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in halves if {"".join(pair), *pair} <= set(model["vocab"])]
        return {**made, "post_processor": None}


def published() -> Published:
    case = case_of("qwen3vl")
    made = Published(**{field.name: getattr(case, field.name) for field in fields(case)})
    processor = {**case.files["preprocessor_config.json"], "size": SIZES}
    return replace(made, files={"preprocessor_config.json": processor})


def named(title: str, folder: Path) -> Path:
    """The file of the tiny model as if it were published under this title."""
    case, golden = published(), harness.load(case_of("qwen3vl"))
    source = case.write(folder / title, golden.config, case.weights(golden.shapes))
    convert_model(source, folder / f"{title}.gguf", "f32")
    return folder / f"{title}.gguf"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("qwen")
    return {kind: named(f"Qwen3-VL-{kind}-2B", folder) for kind in ("Embedding", "Reranker")}


def filled(template: str, **parts: list[Any]) -> list[Any]:
    """A template's segments, as a caller would write them."""
    segments: list[Any] = []
    for piece in template.replace("}", "{").split("{"):
        segments += parts[piece] if piece in parts else [Text(piece, parse_special=True)]
    return segments


def test_the_embedder_reads_its_template(files: Mapping[str, Path]) -> None:
    with harness.engine(files["Embedding"]) as engine:
        assert engine.info.pooling == "last"
        for given in ([Media(PICTURE.file)], [Media(PICTURE.file), Text("what is it?")], [Text("a <|im_end|>")], "a"):
            inner: Any = [Text(given)] if isinstance(given, str) else given
            plain = filled(EMBED, instruction=[Text(INSTRUCTION)], input=inner)
            np.testing.assert_allclose(engine.embed(given), engine.embed(plain, prompt_name=""), atol=1e-6)  # type: ignore[arg-type]
        image = engine.embed_image([PICTURE.file, OTHER.file])
        np.testing.assert_allclose(image[0], engine.embed([Media(PICTURE.file)]), atol=1e-6)
        assert not np.allclose(engine.embed("a"), engine.embed("a", prompt_name=""), atol=1e-3)


def test_a_long_text_keeps_what_stands_behind_it(files: Mapping[str, Path]) -> None:
    long = "a b " * 400
    with harness.engine(files["Embedding"], num_ctx=256) as engine:
        (cut,) = engine.embeddings([long], on_overflow="truncate")
        assert cut.dropped_tokens > 0
        tail = engine.tokenize(EMBED.partition("{input}")[2], add_special=False)
        (made,) = EmbedTexts(engine._loaded).alone([long], "last", "truncate", None, Purpose(), None)
        assert len(made.tokens) == 256
        assert made.tokens[-len(tail) :].tolist() == tail
        (cut,) = engine.embeddings([[Text(long), Tokens([5])]], on_overflow="truncate")  # type: ignore[list-item]
        np.testing.assert_allclose(cut.vector, engine.embed(long, on_overflow="truncate"), atol=1e-5)
        with pytest.raises(ContextOverflowError, match="a text has") as caught:
            engine.embed([Text(long), Media(PICTURE.file)], on_overflow="truncate")
        assert "truncate" not in str(caught.value), "nothing cuts it"


def test_a_text_that_no_context_holds_is_not_tokenized(files: Mapping[str, Path]) -> None:
    long = Text("a fox " * 10_000)
    asks: list[tuple[str, Callable[[Engine], Any]]] = [
        ("Embedding", lambda e: e.embed([Media(PICTURE.file), long])),
        ("Embedding", lambda e: e.embed([Media(PICTURE.file), long], prompt_name="")),
        ("Reranker", lambda e: e.rank("a", [[Media(PICTURE.file), long]])),
        ("Reranker", lambda e: e.rank([long], ["a"], on_overflow="truncate")),
    ]
    for kind, ask in asks:
        told = pytest.raises(ContextOverflowError, match="characters, and so more than")
        with harness.engine(files[kind], num_ctx=256) as engine, told:
            ask(engine)


def test_images_of_one_call_leave_batches_of_others_whole(files: Mapping[str, Path]) -> None:
    pictures = [Picture(20 + i, 20, i) for i in range(3)]
    with harness.engine(files["Embedding"], num_ctx=512) as engine, ThreadPoolExecutor(2) as pool:
        embedder, batches = engine._embedding()._batcher._embedder, list[int]()
        compute = embedder.compute

        def count(texts: Any) -> Any:
            batches.append(sum(not text.images for text in texts))
            return compute(texts)

        with patch.object(embedder, "compute", count):
            with held(engine), patch.object(EmbeddingCall, "feed", counted(fed := threading.Semaphore(0))):
                jobs = [pool.submit(engine.embed, [[Media(picture.file)] for picture in pictures])]
                assert fed.acquire(timeout=30)
                jobs.append(pool.submit(engine.embed, [[5, 6]] * 40))
                assert fed.acquire(timeout=30)
            assert [len(job.result(30)) for job in jobs] == [3, 40]
    assert [n for n in batches if n] == [40]


def test_scores_are_the_probability_of_yes(files: Mapping[str, Path]) -> None:
    output = output_of(case_of("qwen3vl"))
    pairs: list[tuple[Any, Any]] = [
        ("a query", "a document"),
        ("a query", [Media(PICTURE.file)]),
        ([Media(OTHER.file)], [Text("b"), Media(PICTURE.file)]),
    ]
    with harness.engine(files["Reranker"]) as engine:
        for query, document in pairs:
            segments = filled(RERANK, query=[Text(query)] if isinstance(query, str) else query,
                               document=[Text(document)] if isinstance(document, str) else document)  # fmt: skip
            yes, no = engine.embed(segments, pooling="last", normalize=False) @ output[[YES, NO]].T
            (score,) = engine.rank(query, [document])
            assert score == pytest.approx(1 / (1 + np.exp(no - yes)), abs=1e-5)
        both = engine.rank("a query", ["a document", [Media(PICTURE.file)]])
        np.testing.assert_allclose(
            both, [engine.rank("a query", [d])[0] for d in ("a document", [Media(PICTURE.file)])], atol=1e-6
        )
        with pytest.raises(ConfigError, match=r"documents\[1\]: query and documents are texts"):
            engine.rank("a query", ["a document", Media(PICTURE.file)])  # type: ignore[list-item]


def test_a_query_may_stand_behind_its_document(files: Mapping[str, Path], tmp_path: Path) -> None:
    template = {"tokenizer.chat_template.rerank": "{document} answers {query}"}
    with harness.engine(changed(files["Reranker"], tmp_path / "behind.gguf", template)) as engine:
        queries: list[Any] = ["b", [Media(PICTURE.file)], [Media(OTHER.file)], [Tokens([5])], [Tokens([6])]]
        assert len({engine.rank(query, ["a"])[0] for query in queries}) == len(queries)


@pytest.mark.slow
@pytest.mark.timeout(240)  # torch reads four pictures
@pytest.mark.reference
def test_live(files: Mapping[str, Path], tmp_path: Path) -> None:
    """Transformers' model and processor, with the prompts of the models' cards and their limits of pixels."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.models.vision.reference import VisionReference  # noqa: PLC0415 (only where torch is installed)

    reference = VisionReference(published(), tmp_path / "source")
    texts: Any = ("what is it?", (PICTURE,), (PICTURE, "a fox"), (Picture(140, 90), OTHER, "two"))
    head, _, tail = EMBED.replace("{instruction}", INSTRUCTION).partition("{input}")
    with harness.engine(files["Embedding"], num_ctx=2048) as engine:
        for text in texts:
            parts = (text,) if isinstance(text, str) else text
            written = [reference.case.placeholder if isinstance(p, Picture) else p for p in (head, *parts, tail)]
            pictures = [part.draw() for part in parts if isinstance(part, Picture)]
            more = {"images": pictures} if pictures else {}
            inputs = reference.processor(text="".join(written), return_tensors="pt", **more)
            with torch.inference_mode():
                expected = reference.model.model(**inputs).last_hidden_state[0, -1].float().numpy()
            segments = [Media(part.file) if isinstance(part, Picture) else Text(part) for part in parts]
            found = engine.embed(segments, normalize=False)
            assert difference(found, expected) <= TOLERANCE
