"""llama.cpp's library in this process, for rows that no tool of it measures: sampling, loading, tokens, shifts.

It is what `python bench/peers.py build` built; nothing is built here but the few lines of peer_llama.c around it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.peer_tools import ROOT, built
from ollama_engine.sample import SamplingParams

MISSING = "llama.cpp is not built; `python bench/peers.py build` does it"

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "peer_start": (None, []),
    "peer_chain": (c_void_p, [c_void_p, c_uint32]),
    "peer_accept": (None, [c_void_p, c_int32]),
    "peer_chain_free": (None, [c_void_p]),
    "peer_sample": (c_int, [c_void_p, c_void_p, c_int, c_void_p]),
    "peer_model": (c_void_p, [c_char_p, c_bool]),
    "peer_model_free": (None, [c_void_p]),
    "peer_tokenize": (c_int, [c_void_p, c_char_p, c_int, POINTER(c_int32), c_int, c_bool]),
    "peer_context": (c_void_p, [c_void_p, c_int, c_int, c_int]),
    "peer_exact_context": (c_void_p, [c_void_p, c_int, c_int]),
    "peer_typed_context": (c_void_p, [c_void_p, c_int, c_int, c_char_p]),
    "peer_score": (c_int, [c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_void_p, c_void_p]),
    "peer_context_free": (None, [c_void_p]),
    "peer_greedy": (c_int, [c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_int, c_int]),
    "peer_decode": (c_int, [c_void_p, c_int32]),
    "peer_clear": (None, [c_void_p]),
    "peer_shift": (None, [c_void_p]),
}


def vocabulary(name: str) -> Path | None:
    """A vocabulary of the peer's own tests, a GGUF file without weights."""
    return built(f"models/ggml-vocab-{name}.gguf")


def find(folder: Path) -> Llama | None:
    """The library with our lines around it, which are compiled into `folder`; None where either is not to be had."""
    library, header, compiler = built("build/bin/libllama.so"), built("include/llama.h"), shutil.which("cc")
    if library is None or header is None or compiler is None:
        return None
    out = folder / "peer_llama.so"
    command = [compiler, "-O2", "-shared", "-fPIC", str(ROOT / "bench/peer_llama.c"), "-o", str(out)]
    command += [f"-I{header.parent}", f"-I{header.parent.parent / 'ggml/include'}"]
    command += [str(library), f"-Wl,-rpath,{library.parent}", f"-L{library.parent}", "-lggml-base", "-lm"]
    subprocess.run(command, check=True)
    return Llama(out)


class _Sampling(ctypes.Structure):
    """peer_llama.c's peer_sampling: options by their names in SamplingParams."""

    _fields_ = (
        *((name, c_int32) for name in ("top_k", "mirostat", "n_vocab")),
        *((name, c_float) for name in (
            "top_n_sigma", "typical_p", "top_p", "min_p", "xtc_probability", "xtc_threshold", "temperature",
            "dynatemp_range", "dynatemp_exponent", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay",
            "dry_multiplier", "dry_base",
        )),
        *((name, c_int32) for name in ("dry_allowed_length", "dry_penalty_last_n")),
    )  # fmt: skip


@dataclass
class _Chain:
    """A sampler chain and its candidates."""

    pointer: int
    candidates: NDArray[Any]


class Llama:
    """The library at `path`. One in a process; not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._lib = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        self._lib.peer_start()

    # -- sampling ------------------------------------------------------------------------------------------------------

    @contextmanager
    def chain(self, params: SamplingParams, n_vocab: int, history: Iterable[int] = ()) -> Iterator[_Chain]:
        """The samplers of params in llama.cpp's order, after the tokens of a history; penalties are left out."""
        names = [name for name, _ in _Sampling._fields_ if name != "n_vocab"]
        options = _Sampling(n_vocab=n_vocab, **{name: getattr(params, name) for name in names})
        pointer = self._lib.peer_chain(ctypes.byref(options), 1)
        for token in history:
            self._lib.peer_accept(pointer, int(token))
        try:
            yield _Chain(pointer, np.empty(n_vocab, CANDIDATE))
        finally:
            self._lib.peer_chain_free(pointer)

    def sample(self, chain: _Chain, logits: NDArray[np.float32]) -> int:
        """The token drawn from float32 [n_vocab]."""
        candidates = chain.candidates
        found: int = self._lib.peer_sample(chain.pointer, logits.ctypes.data, len(logits), candidates.ctypes.data)
        return found

    # -- models --------------------------------------------------------------------------------------------------------

    @contextmanager
    def model(self, path: str, *, vocab_only: bool = False) -> Iterator[int]:
        pointer = self._lib.peer_model(path.encode(), vocab_only)
        if not pointer:
            raise OSError(f"llama.cpp does not load {path}")
        try:
            yield pointer
        finally:
            self._lib.peer_model_free(pointer)

    @contextmanager
    def context(self, model: int, n_ctx: int, n_batch: int, threads: int) -> Iterator[int]:
        yield from self._context(self._lib.peer_context(model, n_ctx, n_batch, threads), n_ctx)

    @contextmanager
    def exact_context(self, model: int, n_ctx: int, threads: int) -> Iterator[int]:
        """f32 keys and values, no flash attention."""
        yield from self._context(self._lib.peer_exact_context(model, n_ctx, threads), n_ctx)

    @contextmanager
    def typed_context(self, model: int, n_ctx: int, threads: int, dtype: str) -> Iterator[int]:
        """Keys and values of a type by its name in ggml, with flash attention."""
        yield from self._context(self._lib.peer_typed_context(model, n_ctx, threads, dtype.encode()), n_ctx)

    def _context(self, pointer: int | None, n_ctx: int) -> Iterator[int]:
        if not pointer:
            raise MemoryError(f"llama.cpp makes no context of {n_ctx} tokens")
        try:
            yield pointer
        finally:
            self._lib.peer_context_free(pointer)

    def load(self, path: str, n_ctx: int, n_batch: int, threads: int) -> None:
        """A model and a context, and freed again."""
        with self.model(path) as model, self.context(model, n_ctx, n_batch, threads):
            pass

    def load_vocabulary(self, path: str) -> None:
        """Header and tokenizer tables, and freed again."""
        with self.model(path, vocab_only=True):
            pass

    def tokenize(self, model: int, text: bytes, tokens: NDArray[np.int32], *, parse_special: bool = False) -> int:
        """Write the ids of a text to `tokens`; returns how many."""
        into = tokens.ctypes.data_as(POINTER(c_int32))
        found: int = self._lib.peer_tokenize(model, text, len(text), into, len(tokens), parse_special)
        if found < 0:
            raise ValueError(f"{-found} tokens do not fit into {len(tokens)}")
        return found

    def clear(self, context: int) -> None:
        """Forget all tokens."""
        self._lib.peer_clear(context)

    def decode(self, context: int, token: int) -> None:
        """One token behind the last; turns keys that were shifted before."""
        if self._lib.peer_decode(context, token):
            raise RuntimeError("llama.cpp did not decode a token")

    def greedy(
        self, context: int, model: int, prompt: NDArray[np.int32], most: int, keep: int = 0
    ) -> tuple[list[int], list[float]]:
        """Up to `most` tokens of the greedy answer to a prompt, and by how many nats each was ahead of the second.

        A full context is shifted, behind its first `keep` positions.
        """
        tokens, gaps = np.zeros(most, np.int32), np.zeros(most, np.float32)
        n = self._lib.peer_greedy(
            context, model, prompt.ctypes.data, len(prompt), tokens.ctypes.data, gaps.ctypes.data, most, keep
        )
        if n < 0:
            raise RuntimeError("llama.cpp did not decode a prompt")
        return tokens[:n].tolist(), gaps[:n].tolist()

    def score(
        self, context: int, model: int, ids: NDArray[np.int32], kept: int, first: int
    ) -> tuple[list[float], bool]:
        """Log-probabilities of ids[first:], each after those before it; whether all are the most probable ones.

        The context holds ids[:kept] from the call before; what it holds behind them is forgotten.
        """
        logprobs, greedy = np.zeros(len(ids) - first, np.float32), np.zeros(len(ids) - first, np.bool_)
        if self._lib.peer_score(
            context, model, ids.ctypes.data, len(ids), kept, first, logprobs.ctypes.data, greedy.ctypes.data
        ):
            raise RuntimeError("llama.cpp did not decode a text")
        return logprobs.tolist(), bool(greedy.all())

    def shift(self, context: int) -> None:
        """Forget the first position."""
        self._lib.peer_shift(context)
