from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

class BpeMerger:
    def __new__(
        cls, tokens: list[str], merges: list[str], plain: NDArray[np.uint8], byte_level: bool, unknown: int
    ) -> BpeMerger: ...
    def encode(
        self,
        pieces: list[str],
        whole: bool,
        whole_newlines: bool = False,
        checkpoint: Callable[[], object] | None = None,
    ) -> list[int]: ...

class SpmMerger:
    def __new__(
        cls,
        pieces: list[str],
        ranks: NDArray[np.uint32],
        kinds: NDArray[np.uint8],
        byte_ids: NDArray[np.int32],
        unknown: int,
    ) -> SpmMerger: ...
    def encode(self, text: bytes, checkpoint: Callable[[], object] | None = None) -> list[int]: ...

class UnigramSearch:
    def __new__(
        cls,
        pieces: list[str],
        scores: NDArray[np.float64],
        made: NDArray[np.uint8],
        byte_ids: NDArray[np.int32],
        unknown: int,
        unknown_score: float,
    ) -> UnigramSearch: ...
    def encode(self, text: bytes, checkpoint: Callable[[], object] | None = None) -> list[int]: ...
