from typing import Final

import numpy as np
from numpy.typing import NDArray

TARGETS: Final[tuple[str, ...]]

def quantize_rows(
    dtype: str,
    rows: NDArray[np.float32],
    out: NDArray[np.uint8],
    importance: NDArray[np.float32] | None = None,
) -> None: ...
def dequantize_rows(dtype: str, data: NDArray[np.uint8], out: NDArray[np.float32]) -> None: ...
def are_valid(dtype: str, data: NDArray[np.uint8]) -> bool: ...
