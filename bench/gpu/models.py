"""The models of `make gpu-check`, and the settings that each is compared in.

`subjects()` names them all; a child process makes the file of one (`Subject.open`) and computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.real_model import real_model

TEXT = (
    "One day a fox went to the forest. He saw a bear and a bird, and they talked about the sun and the rain for a long "
    "time."
)
N_TOKENS = 32
MIXTURES = ("experts", "moe", "gpt-oss", "llama4", "kimi-linear", "qwen3next")
"""Words in the names of models with experts."""
RECURRENT = ("granitehybrid", "kimi-linear", "lfm2", "mamba", "nemotron", "qwen35", "qwen3next")
"""Words in the names of models with recurrent states."""


@dataclass(frozen=True)
class Setting:
    """How a model is loaded. `layers`: of those on the device, None for all."""

    cache: str = "f16"
    flash: str = "auto"
    layers: int | None = None

    def __str__(self) -> str:
        where = {None: "all layers", 1: "output"}.get(self.layers, f"last {self.layers} layers")
        flash = {"auto": "", "on": ", flash attention", "off": ", two products"}[self.flash]
        return f"{self.cache} cache{flash}, {where}"

    def options(self, device: str | None) -> dict[str, Any]:
        """An Engine's options for it; None is the CPU."""
        place = {"gpu_layers": 0} if device is None else {"devices": [device], "gpu_layers": self.layers}
        return {"kv_cache_type": self.cache, "flash_attention": self.flash, **place}


@dataclass(frozen=True)
class Request:
    """A question to a model: a greedy answer to a prompt, and the logits of another one (None for models that are
    asked about a picture)."""

    prompt: Any
    logits_of: Any
    banned: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model. `open(folder)` gives its file and what is asked of it, or None where it cannot be had."""

    name: str
    settings: tuple[Setting, ...]
    open: Callable[[Path], tuple[str, Request] | None]
    quantized: bool = False
    num_ctx: int = 256

    @property
    def mixture(self) -> bool:
        """Whether tokens go through few of many experts."""
        return any(word in self.name for word in MIXTURES)

    @property
    def recurrent(self) -> bool:
        """Whether layers have recurrent states."""
        return any(word in self.name for word in RECURRENT)


FLASH = (Setting("f32", "off"), Setting("f16", "off"), Setting("f16", "on"))
QUANTIZED_CACHES = (Setting("q8_0"), Setting("q4_0"))
PARTIAL = (Setting(layers=2), Setting(layers=1))
FAMILY = (Setting("f32", "off"), Setting("f16"))


def subjects() -> tuple[Subject, ...]:
    """The packaged models, a published one, and a tiny model of each architecture; raises where tests are broken."""
    from tests.models.variants import VARIANTS  # noqa: PLC0415 (imports much, and the engine)
    from tests.models.vision import harness  # noqa: PLC0415

    return (
        Subject("demo", (*FLASH, *QUANTIZED_CACHES, *PARTIAL), _demo, quantized=True),
        Subject("demo-vision", (Setting("f32", "off"), Setting("f16"), Setting(layers=1)), _demo_vision, True),
        Subject("SmolLM2-135M Q4_1", (*FLASH, Setting("q8_0"), Setting(layers=10)), _smollm2, True),
        *(Subject(f"tiny {variant}", FAMILY, _tiny(variant)) for variant in VARIANTS),
        *(Subject(f"tiny {case} (pictures)", FAMILY, _seeing(case), num_ctx=512) for case in harness.cases()),
    )


def _demo(folder: Path) -> tuple[str, Request]:
    from ollama_engine import demo  # noqa: PLC0415 (children only)

    return str(demo.path()), Request("One day a fox", TEXT)


def _demo_vision(folder: Path) -> tuple[str, Request]:
    from PIL import Image, ImageDraw  # noqa: PLC0415 (children only)

    from ollama_engine import Media, Text, demo  # noqa: PLC0415

    image = Image.new("RGB", (96, 96), "white")
    ImageDraw.Draw(image).ellipse((20, 30, 70, 80), fill="red")
    image.save(folder / "circle.png")
    return str(demo.vision_path()), Request(
        [Media(folder / "circle.png"), Text("What do you see?")], "What do you see?"
    )


def _smollm2(folder: Path) -> tuple[str, Request] | None:
    found = real_model()
    return (str(found), Request(TEXT, TEXT)) if found else None


def _tiny(variant: Any) -> Callable[[Path], tuple[str, Request]]:
    def make(folder: Path) -> tuple[str, Request]:
        from tests.models.families import BANNED  # noqa: PLC0415 (children only)
        from tests.models.variants import prompt  # noqa: PLC0415

        return variant.file(folder), Request(prompt(60), prompt(40), BANNED)

    return make


def _seeing(case: Any) -> Callable[[Path], tuple[str, Request]]:
    def make(folder: Path) -> tuple[str, Request]:
        from tests.models.vision import harness  # noqa: PLC0415 (children only)

        given = next(iter(case.prompts.values()))
        return str(harness.converted(case, folder)), Request(case.segments(given), "Look what it is", case.banned)

    return make
