"""Write the goldens of assistants: `python -m tests.models.make_assistant_goldens [case ...]`, with torch installed."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.assistants import GUESSES, Case, cases, save
from tests.models.draft_cases import DraftGolden
from tests.models.families import write_folder
from tests.models.family_reference import FamilyReference, saved_shapes
from tests.models.published import checksum
from tests.models.reference import quiet


def sharing_modes(config: Any) -> list[str | None]:
    """transformers 5.23 refuses assistants, all of whose layers share, and models none of whose layers do."""
    own, types = config.num_hidden_layers - config.num_kv_shared_layers, config.layer_types
    modes: list[str | None] = [None] * own + ["reuse"] * config.num_kv_shared_layers
    for i in {kind: i for i, kind in enumerate(types[:own])}.values():
        modes[i] = "store"
    return modes


def make(case: Case) -> DraftGolden:
    """The guesses of transformers' candidate generator: one position, and what the model has stored.

    The last token of the prompt is computed by itself, as in an answer: local layers then give what their window holds.
    Behind a prompt in one piece the assistant would see one token more.
    """
    import torch  # noqa: PLC0415 (the goldens are checked without it)
    import transformers as hf  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        model = FamilyReference(case.family, Path(folder) / "model").model
        path, made = Path(folder) / "assistant", getattr(hf, case.class_name)
        with quiet():
            made(made.config_class(**case.arguments)).save_pretrained(path)
        config, shapes = json.loads((path / "config.json").read_text()), saved_shapes(path / "model.safetensors")
        weights = case.weights(shapes)
        write_folder(path, config, weights, case.dtype)
        with quiet():
            assistant = made.from_pretrained(path, dtype="float32", attn_implementation="eager").eval()
        assistant.config.use_ordered_embeddings = False  # all tokens are looked at
        with torch.inference_mode(), quiet():
            prompt = torch.tensor([case.family.prompt])
            before = model(prompt[:, :-1], use_cache=True).past_key_values
            seen = model(
                prompt[:, -1:], past_key_values=before, output_hidden_states=True, return_shared_kv_states=True
            )
            state, ids = seen.hidden_states[-1][:, -1:], seen.logits[:, -1:].argmax(-1)
            tokens, logits, states = [int(ids)], [], []
            for _ in range(GUESSES):
                joined = torch.cat([model.get_input_embeddings()(ids), state], -1)
                out = assistant(
                    inputs_embeds=joined, position_ids=torch.tensor([[prompt.shape[1]]]), use_cache=False,
                    attention_mask=torch.ones(1, prompt.shape[1] + 1, dtype=torch.long),
                    shared_kv_states=seen.shared_kv_states,
                )  # fmt: skip
                state, ids = out.last_hidden_state, out.logits.argmax(-1)
                tokens.append(int(ids))
                logits.append(out.logits[0, 0].float().numpy())
                states.append(state[0, 0].float().numpy())
    return DraftGolden(config, shapes, checksum(weights), tokens, np.array(logits), np.array(states))


def main(names: list[str]) -> None:
    import transformers as hf  # noqa: PLC0415

    for each in (hf.Gemma4TextConfig, hf.Gemma4UnifiedTextConfig):
        each.kv_sharing_modes = property(sharing_modes)
    for case in cases():
        if not names or case.name in names:
            print(save(case, make(case)))


if __name__ == "__main__":
    main(sys.argv[1:])
