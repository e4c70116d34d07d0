from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

def only_texts(values: list[object]) -> bool: ...
def find_texts(texts: list[str], wanted: set[str]) -> dict[str, int]: ...

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

class CharsMapper:
    def __new__(cls, units: NDArray[np.uint32], texts: bytes) -> CharsMapper: ...
    def apply(self, text: bytes) -> bytes: ...

class TextTrie:
    def __new__(cls, entries: list[tuple[bytes, int]]) -> TextTrie: ...
    def find_all(self, text: bytes) -> list[tuple[int, int, int]]: ...
