# The other functions of this module take ggml's pointers.
from typing import SupportsFloat

SOFTCAPS: tuple[float, float]

def read_softcap(value: SupportsFloat, op: str) -> float: ...
