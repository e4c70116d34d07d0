"""DeepSeek-OCR's vision part in llama.cpp's files ("mmproj"), whose names are those that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import Projector, tower_keys

PROJECTOR = Projector(
    "{}",
    types=("deepseekocr",),
    keys=tower_keys(
        "vision.sam.block_count", "vision.sam.embedding_length", "vision.sam.head_count", "vision.window_size",
        "vision.preproc_min_tiles", "vision.preproc_max_tiles",
    ),
    names=(),
)  # fmt: skip
