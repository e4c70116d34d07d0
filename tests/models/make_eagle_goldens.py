"""Write the goldens of EAGLE-3 heads: `python -m tests.models.make_eagle_goldens [case ...]`.

Needs torch, transformers and `speculators` 0.9 (`pip install --no-deps speculators==0.9.0`, whose pins are older), with
what its import wants: openai, datasets, loguru, pydantic-settings, aiohttp, psutil, and hs-connectors (`--no-deps`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.eagle_heads import GUESSES, Case, Golden, cases, save
from tests.models.family_reference import FamilyReference
from tests.models.published import checksum
from tests.models.reference import quiet

LAST_ROWS = 4
"""Rows of the model's states that a golden keeps."""


def states_of(model: Any, prompt: Sequence[int], blocks: Sequence[int]) -> tuple[Any, int]:
    """(What these blocks of a model of transformers give, [rows, blocks * n_embd]; the token that it draws)."""
    import torch  # noqa: PLC0415 (the goldens are checked without it)

    inner = model.get_decoder()
    given: dict[int, Any] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _, args, out, i=i: given.update({i + 1: out[0] if isinstance(out, tuple) else out})
        )
        for i, layer in enumerate(inner.layers)
    ]
    with torch.inference_mode(), quiet():
        logits = model(torch.tensor([list(prompt)]), use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return torch.cat([given[block][0] for block in blocks], -1), int(logits[0, -1].argmax())


def made_head(case: Case, folder: Path, model: Any) -> tuple[Any, dict[str, Any], dict[str, list[int]]]:
    """A head of `speculators` with the case's weights, its config.json, and the shapes of its tensors."""
    import torch  # noqa: PLC0415
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig  # noqa: PLC0415
    from transformers import AutoConfig  # noqa: PLC0415

    block = AutoConfig.for_model(**{"model_type": "llama", **case.block})
    block._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=block, draft_vocab_size=case.n_draft,
        eagle_aux_hidden_state_layer_ids=list(case.blocks), **case.outer,
    )  # fmt: skip
    head = Eagle3DraftModel(config).eval()
    head.config.save_pretrained(folder)
    shapes = {
        name: list(values.shape) for name, values in head.state_dict().items() if not name.startswith("verifier_")
    }
    weights = {name: torch.tensor(values) for name, values in case.weights(shapes).items()}
    if case.dtype == "BF16":  # cut off, as they are written
        cut = [name for name, values in weights.items() if values.is_floating_point()]
        weights |= {name: (weights[name].view(torch.int32) & ~0xFFFF).view(torch.float32) for name in cut}
    if not case.own_embeddings:
        weights["embed_tokens.weight"] = model.get_input_embeddings().weight.detach()
    head.load_state_dict(weights, strict=False)
    return head, json.loads((folder / "config.json").read_text()), shapes


def make(case: Case) -> Golden:
    """Guesses behind each other, by the steps that the head is trained with.

    A step reads given tokens, and the head's own states of the step before, where those of earlier rows are the
    first step's. So behind the prompt's last row it computes what an answer does, once its guesses are given.
    """
    import torch  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        model = FamilyReference(case.family, Path(folder) / "model").model
        with quiet():
            head, config, shapes = made_head(case, Path(folder), model)
        aux, drawn = states_of(model, case.family.prompt, case.blocks)
        n, tokens = len(aux), [drawn]
        kept: dict[str, list[Any]] = {}
        head.lm_head.register_forward_hook(lambda _, args, out: kept["logits"].append(out[0, n - 1]))
        given_on = head.norm if head.config.norm_output else head.layers[-1]
        given_on.register_forward_hook(lambda _, args, out: kept["states"].append(out[0, n - 1]))
        for n_steps in range(1, GUESSES + 1):
            kept |= {"logits": [], "states": []}
            given = [*case.family.prompt[1:], *tokens, *[0] * (GUESSES - len(tokens))]
            rows = torch.cat([aux, torch.zeros(len(given) - n, aux.shape[1])])
            with torch.inference_mode(), quiet():
                head(rows[None], torch.tensor([given]), torch.zeros(1, len(given), dtype=torch.long), ttt_steps=n_steps)
            best = int(kept["logits"][-1].argmax())
            tokens.append(best if case.n_draft == head.embed_tokens.num_embeddings else best + int(head.d2t[best]))
    logits, states = (np.array([row.float().numpy() for row in kept[name]]) for name in ("logits", "states"))
    return Golden(
        config, shapes, checksum(case.weights(shapes)), tokens, logits, states, aux[-LAST_ROWS:].float().numpy()
    )


def main(names: list[str]) -> None:
    for case in cases():
        if not names or case.name in names:
            print(save(case, make(case)))


if __name__ == "__main__":
    main(sys.argv[1:])
