"""The models of `harness` in Hugging Face transformers. Needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.family_reference import saved_shapes
from tests.models.reference import quiet
from tests.models.vision.harness import GREEDY_STEPS, Answer, Case, Prompt
from tests.models.vision.pictures import Picture
from tests.support.tiny import SPECIALS

N_ROWS = 6


class VisionReference:
    """One model of transformers with its processor; eager attention, float32."""

    def __init__(self, case: Case, folder: Path) -> None:
        import transformers as hf  # noqa: PLC0415 (the goldens are checked without torch)

        model_class = getattr(hf, case.model)
        with quiet():
            model_class(model_class.config_class(**case.config)).save_pretrained(folder)
        self.case = case
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.shapes = saved_shapes(folder / "model.safetensors")
        self.weights = case.weights(self.shapes)
        self.folder = case.write(folder, self.config, self.weights)
        names = {token.name: token.text for token in case.tokens if token.name is not None}
        with quiet():
            self.model = model_class.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()
            case.adapt(self.model)
            tokenizer = hf.PreTrainedTokenizerFast(
                tokenizer_file=str(folder / "tokenizer.json"), bos_token=SPECIALS[0], eos_token=SPECIALS[1],
                extra_special_tokens=names,
            )  # fmt: skip
            self.processor = case.processor(tokenizer)

    def inputs(self, prompt: Prompt) -> Any:
        """The processor's tensors of a prompt, of torch."""
        images = [part.draw() for part in prompt if isinstance(part, Picture)]
        with quiet():
            return self.processor(text=self.case.text(prompt), images=images, return_tensors="pt")

    def ids(self, prompt: Prompt) -> list[int]:
        return [int(i) for i in self.inputs(prompt)["input_ids"][0]]

    def logits(self, inputs: Any) -> NDArray[np.float32]:
        """[inputs, n_vocab]."""
        import torch  # noqa: PLC0415

        with torch.inference_mode(), quiet():
            out = self.model(**inputs, use_cache=False).logits[0]
        return np.asarray(out.float().numpy(), dtype=np.float32)

    def greedy(self, inputs: Any) -> tuple[list[int], float]:
        """The tokens after a prompt, and the smallest lead of one before the second, in standard deviations."""
        import torch  # noqa: PLC0415

        banned = list(self.case.banned)
        with torch.inference_mode(), quiet():
            made = self.model.generate(
                **inputs, do_sample=False, max_new_tokens=GREEDY_STEPS, suppress_tokens=banned, pad_token_id=0,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        rows = np.stack([row[0].float().numpy() for row in made.logits])
        deviations = rows.std(axis=1)
        rows[:, banned] = -np.inf
        second, best = np.sort(rows, axis=1)[:, -2:].T
        tokens = [int(t) for t in made.sequences[0, -GREEDY_STEPS:]]
        assert tokens == rows.argmax(axis=1).tolist(), "generate takes the token with the highest logit"
        return tokens, float(((best - second) / deviations).min())

    def arrays(self, picture: Picture) -> Mapping[str, NDArray[Any]]:
        """The processor's arrays of a picture, under the engine's names."""
        return self.case.arrays(self.inputs((picture,)))

    def answer(self, prompt: Prompt) -> tuple[Answer, float]:
        """Everything that a golden has of a prompt, and the smallest lead."""
        import torch  # noqa: PLC0415

        inputs = self.inputs(prompt)
        ids = inputs["input_ids"][0].numpy()
        rows = np.linspace(0, len(ids) - 1, N_ROWS).astype(np.int64)
        with torch.inference_mode(), quiet():
            features = self.case.features(self.model, inputs)
        tokens, lead = self.greedy(inputs)
        return Answer(ids, features, rows, self.logits(inputs)[rows], tokens), lead
