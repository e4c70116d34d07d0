"""How many images a prompt may have side by side, for models with cross-attention."""

from __future__ import annotations

from ollama_engine.errors import ImageError, Option
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.load.memory_plan import image_slots
from ollama_engine.runner.request.inputs import Inputs

__all__ = ["check_image_runs"]


def check_image_runs(inputs: Inputs, loaded: Loaded) -> None:
    """Raise ImageError for more images side by side than layers with cross-attention can store."""
    run, most = inputs.longest_image_run, image_slots(loaded.config)
    if run > most:
        raise ImageError(
            f"{run} images of the prompt stand side by side and are seen together, but there is room for {most}",
            advice=["put text between them", ("raise ", Option("parallel"))],
        )
