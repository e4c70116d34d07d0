from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray
from typing_extensions import Buffer

from ollama_engine.runner.prefix_store.step_budget import StepBudget

PIECE: int

def write_parts(file: int, parts: Iterable[Buffer | NDArray[Any]], budget: StepBudget) -> None: ...
