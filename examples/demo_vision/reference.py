"""Asks transformers about the held-out pictures, with the weights that the GGUF has, and writes down its answers.

Run from `examples/`: `python -m demo_vision.reference ../build/demo_vision/hf ../tests/demo/seen.json`. Of each kind of
pictures, the file has a pair of answers per picture, to the questions of `held_out.questions`, and their hash.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoTokenizer, Gemma3ForConditionalGeneration, Gemma3Processor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from .held_out import HELD_OUT, digest, pictures, questions
from .scene import Scene

LONGEST = 64
AT_ONCE = 50


def main() -> None:
    """Write the file, and print how many answers are right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(",", maxsplit=1)[0])
    parser.add_argument("hf", type=Path, help="the folder that export.py wrote")
    parser.add_argument("json", type=Path, help="the file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    asked = Asking(args.hf)
    written = []
    for kind, n in HELD_OUT.items():
        shown = list(pictures(kind, n))
        found = asked.all_answers(shown)
        report(kind, [scene for scene, _ in shown], found)
        lines = ",\n".join(json.dumps(row) for row in found)
        written.append(f'"{kind}": {{"digest": "{digest(image for _, image in shown)}",\n"answers": [\n{lines}\n]}}')
    args.json.write_text("{" + ",\n".join(written) + "}\n")


class Asking:
    """The network and the processor of a folder."""

    def __init__(self, folder: Path) -> None:
        self.model = Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        template = (folder / "chat_template.jinja").read_text()
        self.processor = Gemma3Processor(
            Gemma3ImageProcessorPil.from_pretrained(folder), AutoTokenizer.from_pretrained(folder),
            chat_template=template, image_seq_length=self.model.config.mm_tokens_per_image,
        )  # fmt: skip

    def all_answers(self, shown: list[tuple[Scene, Image.Image]]) -> list[list[str]]:
        """The answers to both questions about each picture; the same question is asked of several pictures at once."""
        found = [["", ""] for _ in shown]
        places: dict[str, list[tuple[int, int]]] = {}
        for number, (scene, _) in enumerate(shown):
            for which, question in enumerate(questions(scene, number)):
                places.setdefault(question.question, []).append((number, which))
        for question, where in places.items():
            for start in range(0, len(where), AT_ONCE):
                part = where[start : start + AT_ONCE]
                said = self.answers([shown[number][1] for number, _ in part], question)
                for (number, which), text in zip(part, said, strict=True):
                    found[number][which] = text
        return found

    @torch.no_grad()
    def answers(self, images: list[Image.Image], question: str) -> list[str]:
        """The most likely answer to one question about each of several pictures. Prompts are of one length."""
        prompts = [
            [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]
            for image in images
        ]
        inputs: Any = self.processor.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        ids = self.model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)
        answers: list[str] = self.processor.batch_decode(
            ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return answers


def report(kind: str, scenes: list[Scene], found: list[list[str]]) -> None:
    """Print how many answers are right."""
    right = [
        [said == asked.answer for said, asked in zip(row, questions(scene, number), strict=True)]
        for number, (scene, row) in enumerate(zip(scenes, found, strict=True))
    ]
    descriptions, others = (sum(row[column] for row in right) for column in (0, 1))
    print(f"{kind}: {len(right)}; right descriptions {descriptions}, right other answers {others}")


if __name__ == "__main__":
    main()
