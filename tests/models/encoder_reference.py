"""The models of `encoders` in Hugging Face transformers. Needs torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.encoders import SIZES, Case
from tests.models.family_reference import saved_shapes
from tests.models.reference import quiet
from tests.support.tiny import Weights


class EncoderReference:
    """One model of transformers, saved as it is published; eager attention, float32."""

    def __init__(self, case: Case, folder: Path) -> None:
        import transformers as hf  # noqa: PLC0415 (the goldens are checked without torch)

        self._case = case
        model_class = getattr(hf, case.class_name)
        with quiet():
            model_class(model_class.config_class(**{**SIZES, **case.settings})).save_pretrained(folder)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.shapes = saved_shapes(folder / "model.safetensors")
        self.weights: Weights = case.weights(self.shapes)
        self.folder = case.write(folder, self.config, self.weights)
        with quiet():
            self._model = model_class.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()
            assert not any(p.device.type == "meta" for p in self._model.parameters())

    def hidden(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """[len(ids), n_embd]."""
        import torch  # noqa: PLC0415

        with torch.inference_mode(), quiet():
            out = self._model(torch.tensor([list(ids)]), output_hidden_states=True)
            last = out.last_hidden_state if hasattr(out, "last_hidden_state") else out.hidden_states[-1]
        return np.asarray(last[0].float().numpy(), dtype=np.float32)

    def score(self, ids: Sequence[int], types: Sequence[int]) -> NDArray[np.float32]:
        """The score of a pair of texts, [1]."""
        import torch  # noqa: PLC0415

        typed = self._model.config.model_type == "bert"
        more = {"token_type_ids": torch.tensor([list(types)])} if typed else {}
        with torch.inference_mode(), quiet():
            out = self._model(torch.tensor([list(ids)]), **more).logits[0]
        return np.asarray(out.float().numpy(), dtype=np.float32)
