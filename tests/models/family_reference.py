"""The models of `families` in Hugging Face transformers. Needs torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.cases import GREEDY_STEPS
from tests.models.families import BANNED, Family, write_folder
from tests.models.reference import quiet
from tests.support.tiny import Weights


class FamilyReference:
    """One model of transformers, saved as it is published; eager attention, float32, without a cache."""

    def __init__(self, case: Family, folder: Path) -> None:
        import transformers as hf  # noqa: PLC0415 (the goldens are checked without torch)

        model_class = getattr(hf, case.class_name)
        with quiet():
            model_class(model_class.config_class(**case.arguments)).save_pretrained(folder)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.shapes = {
            name: next((list(to) for end, to in case.shapes.items() if name.endswith(end)), shape)
            for name, shape in saved_shapes(folder / "model.safetensors").items()
        }
        self.weights: Weights = case.weights(self.shapes)
        self.folder = write_folder(folder, self.config, self.weights, case.dtype)
        with quiet():
            self.model = model_class.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """[len(ids), n_vocab]."""
        import torch  # noqa: PLC0415

        with torch.inference_mode(), quiet():
            out = self.model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return np.asarray(out.float().numpy(), dtype=np.float32)

    def exact_logits(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """[len(ids), n_vocab], computed in float64."""
        import torch  # noqa: PLC0415

        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.inference_mode(), quiet():
                model = (
                    type(self.model)
                    .from_pretrained(
                        self.folder, dtype="float64", attn_implementation="eager", experts_implementation="eager"
                    )
                    .eval()
                )
                out = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        finally:
            torch.set_default_dtype(before)
        return np.asarray(out.numpy(), dtype=np.float64)

    def best_after(self, ids: Sequence[int]) -> tuple[list[int], NDArray[np.float64]]:
        """The best token after each of `ids`, and its lead before the second in standard deviations of the row."""
        rows = self.logits(ids)
        deviations = rows.std(axis=1)
        rows[:, list(BANNED)] = -np.inf
        second, best = np.sort(rows, axis=1)[:, -2:].T
        return rows.argmax(axis=1).tolist(), (best - second) / deviations

    def greedy(self, prompt: Sequence[int]) -> tuple[list[int], float]:
        """The tokens after the prompt, and the smallest lead among them."""
        ids, least = list(prompt), np.inf
        for _ in range(GREEDY_STEPS):
            best, leads = self.best_after(ids)
            ids.append(best[-1])
            least = min(least, float(leads[-1]))
        return ids[len(prompt) :], least


def saved_shapes(path: Path) -> dict[str, list[int]]:
    """{tensor: shape} of a safetensors file, from its header."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
