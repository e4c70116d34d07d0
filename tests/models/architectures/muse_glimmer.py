"""Muse Glimmer, its text part."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {"num_hidden_layers": 4, "sliding_window": 24, "qk_scale_factor": 1.5}
_VISION = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
_PROJECTOR = {"out_hidden_size": 128, "projector_hidden_size": 48}

CASES = (
    Family("muse-glimmer", "MuseGlimmer", _SETTINGS, contract=True, vision=_VISION, outer=_PROJECTOR, norms=0.0),
    Family("muse-glimmer-bf16", "MuseGlimmer", _SETTINGS, dtype="BF16", vision=_VISION, outer=_PROJECTOR, norms=0.0),
)
