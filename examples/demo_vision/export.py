"""Writes the trained network as transformers would publish it.

Run from `examples/`: `python -m demo_vision.export ../build/demo_vision`. The folder `hf` below it is what
`Gemma3ForConditionalGeneration` and `Gemma3Processor` load, and what `ollama-engine convert` takes. Weights are rounded
to float16, so that the GGUF has the very same numbers.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from transformers import Gemma3Processor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from .model import IMAGE_SIZE, IMAGE_TOKENS, Seeing, gemma_config
from .talk import CHAT_TEMPLATE
from .tokens import IDS, hugging_face

CARD = """---
license: mit
language: en
model_name: ollama_engine demo vision
---
"""


def main() -> None:
    """Read `settle.pt` and `tokenizer.model`, write the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="what train.py wrote")
    args = parser.parse_args()
    publish(args.folder, args.folder / "hf")


def publish(trained: Path, folder: Path) -> None:
    """Write weights, config, tokenizer, image processor and chat template to `folder`, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    model = Seeing(gemma_config(IDS))
    model.load_state_dict(torch.load(trained / "settle.pt", weights_only=True)["weights"])
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half().float())
    model.gemma.save_pretrained(folder)
    side = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    images = Gemma3ImageProcessorPil(size=side, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_pan_and_scan=False)
    tokenizer = hugging_face(trained / "tokenizer.model")
    Gemma3Processor(images, tokenizer, chat_template=CHAT_TEMPLATE, image_seq_length=IMAGE_TOKENS).save_pretrained(
        folder
    )
    shutil.copy(trained / "tokenizer.model", folder)
    (folder / "README.md").write_text(CARD)
    _settle_processor(folder)


def _settle_processor(folder: Path) -> None:
    """Image processor settings lie in preprocessor_config.json too, where all versions look for them."""
    settings = json.loads((folder / "processor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(settings["image_processor"], indent=1) + "\n")


if __name__ == "__main__":
    main()
