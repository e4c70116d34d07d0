"""How long does a picture take? Vision towers in full width with random weights, two threads.

Gemma 3's is measured in every part; of the others (`vision_families.py`) the first token alone.

Encoding: ours is the vision graph alone, with weights of one type. Twin: transformers with torch, which computes in the
same type (float32 for f32, bfloat16 for bf16); skipped where they are not installed. Peer: what llama-mtmd-cli reports
of encoding the picture.

First token: ours is `Engine.generate` of a picture and a question, from bytes to token; "again" is the same picture in
a second question of the conversation, which llama-mtmd-cli encodes anew. Peer: the milliseconds that it reports of
encoding and decoding the picture, the sum of its tiles, without the text's; skipped where it is not built.

VISION_LAYERS=2 takes so many of the tower's 27 layers; the other families have 2 otherwise. Run:
`python -m pytest bench/bench_vision.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from bench import peer_tools
from bench.make_vision import Pair, VisionShape, write_pair
from bench.reported import report, shortest
from bench.vision_families import FAMILIES, write_family
from ollama_engine import Engine, Media, SamplingParams, Text
from ollama_engine.ml.graph.context import Context

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.timeout(1800)

THREADS = 2
ROUNDS = 2
LAYERS = int(os.environ.get("VISION_LAYERS", "27"))
FAMILY_LAYERS = int(os.environ.get("VISION_LAYERS", "2"))
FAMILY_ROUNDS = 3
PROMPT = "What is it?"
FIRST = SamplingParams(max_tokens=1, temperature=0)
DTYPES = {"f32": "float32", "bf16": "bfloat16"}
ENCODED = r"mtmd batch encoding done in (\d+) ms"
DECODED = r"image decoded \(batch \d+/\d+\) in (\d+) ms"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vision")


@pytest.fixture
def measuring(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--benchmark-enable"))


@pytest.fixture
def layers(measuring: bool) -> int:
    return LAYERS if measuring else 1


def pair_of(folder: Path, kind: str, layers: int) -> Pair:
    made = Pair(folder / f"text-{kind}.gguf", folder / f"mmproj-{kind}-{layers}.gguf")
    return made if made.projector.exists() else write_pair(folder, kind, VisionShape(v_layer=layers))


@pytest.fixture
def picture() -> bytes:
    """A PNG file of 640 times 480 pixels."""
    Image = pytest.importorskip("PIL.Image")  # noqa: N806
    y, x = np.mgrid[0:480, 0:640]
    pixels = np.stack([x % 256, y % 256, (x + y) % 256], axis=-1).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def opened(pair: Pair) -> Engine:
    return Engine(pair.text, projector=pair.projector, threads=THREADS, num_ctx=2048, gpu_layers=0)


def again(engine: Engine, picture: bytes) -> float:
    """Seconds to the first token of a second question with the same picture, which was encoded for the first."""
    prompt = [Media(picture), Text(PROMPT)]
    engine.generate(prompt, FIRST)
    more = [*prompt, Text(" A square. "), Media(picture), Text("And now?")]
    seconds = shortest(lambda: engine.generate(more, FIRST), 1)
    assert engine.metrics.encoded_images == 1
    return seconds


def encode(engine: Engine, multimodal: Any, image: Any) -> None:
    with Context(engine._loaded.backend) as ctx:
        out = multimodal.encode_multimodal(ctx, image)
        ctx.forward(out)
        ctx.alloc()
        ctx.compute()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_encode(benchmark: BenchmarkFixture, kind: str, folder: Path, layers: int, measuring: bool) -> None:
    benchmark.group = f"encode a picture, {kind}"
    pair = pair_of(folder, kind, layers)
    with Engine(pair.text, projector=pair.projector, threads=THREADS, gpu_layers=0) as engine:
        multimodal: Any = engine._loaded.model.multimodal  # type: ignore[attr-defined]
        image = multimodal.largest_image()
        image.arrays["patches"][:] = np.random.default_rng(0).standard_normal(image.arrays["patches"].shape)
        report(benchmark, shortest(lambda: encode(engine, multimodal, image), ROUNDS if measuring else 1))


@pytest.mark.twin
@pytest.mark.parametrize("kind", DTYPES)
def test_transformers(benchmark: BenchmarkFixture, kind: str, layers: int, measuring: bool) -> None:
    benchmark.group = f"encode a picture, {kind}"
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    if not measuring:
        pytest.skip("nothing to try where nothing is measured")
    shape, before, dtype = VisionShape(v_layer=layers), torch.get_num_threads(), getattr(torch, DTYPES[kind])
    torch.set_num_threads(THREADS)
    config = transformers.SiglipVisionConfig(
        hidden_size=shape.v_embd, intermediate_size=shape.v_ff, num_hidden_layers=layers,
        num_attention_heads=shape.v_head, image_size=shape.image, patch_size=shape.patch, vision_use_head=False,
    )  # fmt: skip
    model = transformers.SiglipVisionModel(config).eval().to(dtype)
    pixels = torch.randn(1, 3, shape.image, shape.image, dtype=dtype)
    with torch.inference_mode():
        report(benchmark, shortest(lambda: model(pixels), ROUNDS))
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["f16"])
def test_first_token(
    benchmark: BenchmarkFixture, kind: str, folder: Path, picture: bytes, layers: int, measuring: bool
) -> None:
    benchmark.group = f"first token with a picture, {kind}"
    pair = pair_of(folder, kind, layers)
    prompt = [Media(picture), Text(PROMPT)]
    seconds = []
    for _ in range(ROUNDS if measuring else 1):
        with opened(pair) as engine:
            seconds.append(shortest(lambda: engine.generate(prompt, FIRST), 1))
    report(benchmark, min(seconds))


@pytest.mark.parametrize("kind", ["f16"])
def test_first_token_again(
    benchmark: BenchmarkFixture, kind: str, folder: Path, picture: bytes, layers: int, measuring: bool
) -> None:
    """The conversation goes on with the same picture, at another place."""
    benchmark.group = f"first token with the same picture again, {kind}"
    pair = pair_of(folder, kind, layers)
    with opened(pair) as engine:
        report(benchmark, again(engine, picture))


@pytest.fixture(scope="module")
def outputs(folder: Path) -> dict[tuple[str, int], str]:
    return {}


def peer_says(pair: Pair, picture: bytes, folder: Path) -> str:
    """The output of llama-mtmd-cli for a turn with a picture. In a second turn it fails (0 media markers)."""
    file = folder / "picture.png"
    file.write_bytes(picture)
    command = [
        peer_tools.tool("llama-mtmd-cli"), "-m", str(pair.text), "--mmproj", str(pair.projector), "-t", str(THREADS),
        "-n", "1", "--temp", "0", "-c", "2048", "--jinja", "--no-mmproj-offload", "-lv", "4",
    ]  # fmt: skip
    turns = f"/image {file}\n{PROMPT}\n/exit\n"
    done = subprocess.run(command, input=turns.encode(), capture_output=True, check=False, timeout=1500)
    return (done.stdout + done.stderr).decode(errors="replace")


def peer_times(said: str) -> tuple[float, float]:
    """Seconds of encoding and of decoding, of all tiles of the picture."""
    encoded, decoded = ([int(ms) / 1e3 for ms in re.findall(told_of, said)] for told_of in (ENCODED, DECODED))
    assert len(encoded), f"llama-mtmd-cli reports no times:\n{said[-2000:]}"
    assert len(encoded) <= len(decoded), f"llama-mtmd-cli reports a tile that it did not decode:\n{said[-2000:]}"
    return sum(encoded), sum(decoded)


@pytest.mark.peer
@pytest.mark.parametrize("question", ["encode a picture, f16", "first token with a picture, f16"])
def test_llama_mtmd(
    benchmark: BenchmarkFixture, question: str, folder: Path, picture: bytes, outputs: dict[tuple[str, int], str],
    measuring: bool,
) -> None:  # fmt: skip
    benchmark.group = question
    if not peer_tools.has_tool("llama-mtmd-cli"):
        pytest.skip("llama-mtmd-cli is not built: python bench/peers.py build")
    if not measuring:
        pytest.skip("nothing to try where nothing is measured")
    key = ("f16", LAYERS)
    if key not in outputs:
        outputs[key] = peer_says(pair_of(folder, "f16", LAYERS), picture, folder)
    encoded, decoded = peer_times(outputs[key])
    report(benchmark, encoded if question.startswith("encode") else encoded + decoded)


# -- other families ----------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    name: str
    pair: Pair


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, folder: Path) -> Iterator[Named]:
    """A family and its files. With the scope of the module, the peer runs right behind ours."""
    measuring = request.config.getoption("--benchmark-enable")
    if FAMILIES[request.param].text and not measuring:
        pytest.skip("a text model of published size is written where something is measured")
    layers = FAMILY_LAYERS if measuring else 1
    pair = write_family(folder, request.param, layers)
    yield Named(request.param, pair)
    for file in pair:
        file.unlink()


def test_family(benchmark: BenchmarkFixture, family: Named, picture: bytes, measuring: bool) -> None:
    benchmark.group = f"first token with a picture, {family.name}"
    seconds = []
    for _ in range(FAMILY_ROUNDS if measuring else 1):
        with opened(family.pair) as engine:
            seconds.append(shortest(lambda: engine.generate([Media(picture), Text(PROMPT)], FIRST), 1))
    report(benchmark, min(seconds))


def test_family_again(benchmark: BenchmarkFixture, family: Named, picture: bytes, measuring: bool) -> None:
    """The conversation goes on with the same picture, at another place."""
    benchmark.group = f"first token with the same picture again, {family.name}"
    seconds = []
    for _ in range(FAMILY_ROUNDS if measuring else 1):
        with opened(family.pair) as engine:
            seconds.append(again(engine, picture))
    report(benchmark, min(seconds))


@pytest.mark.peer
def test_family_llama_mtmd(
    benchmark: BenchmarkFixture, family: Named, folder: Path, picture: bytes, measuring: bool
) -> None:
    benchmark.group = f"first token with a picture, {family.name}"
    if not peer_tools.has_tool("llama-mtmd-cli"):
        pytest.skip("llama-mtmd-cli is not built: python bench/peers.py build")
    if not measuring:
        pytest.skip("nothing to try where nothing is measured")
    found = []
    for _ in range(FAMILY_ROUNDS):
        found.append(sum(peer_times(peer_says(family.pair, picture, folder))))
    report(benchmark, min(found))
