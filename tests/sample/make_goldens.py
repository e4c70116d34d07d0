"""Writes goldens.json: what llama.cpp's samplers make of the rows, chains and histories of golden_cases.py.

    python -m tests.sample.make_goldens

needs llama.cpp's library as `python bench/peers.py build` leaves it. Its functions are called one by one, with a list
of candidates as its own programs make it. Probabilities are the softmax of the logits that a sampler leaves.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from bench.peer_llama import MISSING, Llama, find
from ollama_engine import demo
from ollama_engine.sample import SamplingParams
from ollama_engine.tokenizer import from_gguf
from tests.sample import golden_cases as cases
from tests.sample.rows import FloatRow

OUT = Path(__file__).with_name("goldens.json")
SEED = 11
LISTED = 100
"""Longer lists of tokens are given by the ones that are missing, or by their number."""

MU_AT = {1: 24, 2: 16}
"""Byte offset of mu in llama.cpp's structures for mirostat 1 and 2, and of adaptive-p's sum and weight."""
SUM_AT, WEIGHT_AT = 5016, 5020


class TokenData(Structure):
    _fields_ = (("id", c_int32), ("logit", c_float), ("p", c_float))


class TokenDataArray(Structure):
    _fields_ = (("data", POINTER(TokenData)), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool))


class Sampler(Structure):
    _fields_ = (("iface", c_void_p), ("ctx", c_void_p))


ARGUMENTS: dict[str, list[Any]] = {
    "top_k": [c_int32],
    "top_p": [c_float, c_size_t],
    "min_p": [c_float, c_size_t],
    "typical": [c_float, c_size_t],
    "temp": [c_float],
    "temp_ext": [c_float, c_float, c_float],
    "xtc": [c_float, c_float, c_size_t, c_uint32],
    "top_n_sigma": [c_float],
    "mirostat": [c_int32, c_uint32, c_float, c_float, c_int32],
    "mirostat_v2": [c_uint32, c_float, c_float],
    "penalties": [c_int32, c_int32, c_float, c_float, c_float],
    "dry": [c_void_p, c_float, c_float, c_int32, c_int32, POINTER(c_char_p), c_size_t],
    "adaptive_p": [c_float, c_float, c_uint32],
}


class Peer:
    """llama.cpp's samplers."""

    def __init__(self, llama: Llama, vocab: int) -> None:
        self.lib, self.vocab = llama._lib, vocab
        for name, arguments in ARGUMENTS.items():
            function = getattr(self.lib, f"llama_sampler_init_{name}")
            function.restype, function.argtypes = POINTER(Sampler), arguments
        self.lib.llama_sampler_apply.argtypes = [POINTER(Sampler), POINTER(TokenDataArray)]
        self.lib.llama_sampler_accept.argtypes = [POINTER(Sampler), c_int32]
        self.lib.llama_sampler_free.argtypes = [POINTER(Sampler)]

    @contextmanager
    def sampler(self, name: str, *arguments: Any) -> Iterator[Any]:
        made = getattr(self.lib, f"llama_sampler_init_{name}")(*arguments)
        try:
            yield made
        finally:
            self.lib.llama_sampler_free(made)

    def named(self, name: str, p: SamplingParams, n_vocab: int) -> Any:
        """The sampler that this name of a chain stands for."""
        breakers = [text.encode() for text in p.dry_sequence_breakers]
        made: dict[str, tuple[Any, ...]] = {
            "top_k": ("top_k", p.top_k),
            "top_p": ("top_p", p.top_p, p.min_keep),
            "min_p": ("min_p", p.min_p, p.min_keep),
            "typ_p": ("typical", p.typical_p, p.min_keep),
            "temperature": ("temp_ext", p.temperature, p.dynatemp_range, p.dynatemp_exponent),
            "xtc": ("xtc", p.xtc_probability, p.xtc_threshold, p.min_keep, SEED),
            "top_n_sigma": ("top_n_sigma", p.top_n_sigma),
            "penalties": (
                "penalties", n_vocab, p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty,
            ),
            "dry": (
                "dry", self.vocab, p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n,
                (c_char_p * max(1, len(breakers)))(*breakers), len(breakers),
            ),
            "adaptive_p": ("adaptive_p", p.adaptive_target, p.adaptive_decay, SEED),
        }  # fmt: skip
        return self.sampler(*made[name])


class Candidates:
    """A list of candidates as llama.cpp takes it."""

    def __init__(self, logits: FloatRow, *, finite: bool) -> None:
        tokens = np.flatnonzero(logits > -np.inf) if finite else np.arange(len(logits))
        self.data = (TokenData * len(tokens))(*((int(t), float(logits[t]), 0.0) for t in tokens))
        self.array = TokenDataArray(self.data, len(tokens), -1, False)

    def left(self) -> dict[int, float]:
        """The tokens above -inf and their logits."""
        pairs = ((self.array.data[i].id, self.array.data[i].logit) for i in range(self.array.size))
        return {token: logit for token, logit in pairs if logit > -np.inf}

    def selected(self) -> int:
        return int(self.array.data[self.array.selected].id)


def probabilities(left: dict[int, float]) -> dict[int, float]:
    values = np.array(list(left.values()), np.float64)
    e = np.exp(values - values.max())
    return dict(zip(left, (e / e.sum()).tolist(), strict=True))


def summary(left: dict[int, float], before: Sequence[int]) -> dict[str, Any]:
    """Which tokens are left, shortly, and the probabilities of some of them."""
    p = probabilities(left)
    best = sorted(p, key=lambda token: (-p[token], token))
    some = [*best[:6], *best[6 :: max(1, len(best) // 6)]]
    gone = sorted(set(before) - set(left))
    found: dict[str, Any] = {"count": len(left), "p": [[token, float(f"{p[token]:.6g}")] for token in some]}
    if len(left) <= LISTED:
        found["kept"] = sorted(left)
    elif len(gone) <= LISTED:
        found["dropped"] = gone
    return found


def chain_golden(peer: Peer, logits: FloatRow, params: SamplingParams, *, finite: bool) -> list[dict[str, Any]]:
    """The candidates that are left after each sampler of the chain."""
    candidates, found = Candidates(logits, finite=finite), []
    before = list(candidates.left())
    for name in cases.names(params):
        with peer.named(name, params, len(logits)) as sampler:
            for token in cases.history_of(len(logits)):
                peer.lib.llama_sampler_accept(sampler, token)
            peer.lib.llama_sampler_apply(sampler, byref(candidates.array))
        found.append(summary(candidates.left(), before))
    return found


def dry_golden(peer: Peer, params: SamplingParams, history: Sequence[int], n_vocab: int) -> list[list[float]]:
    """[token, what is subtracted from its logit] of all that have a penalty."""
    candidates = Candidates(np.zeros(n_vocab, np.float32), finite=False)
    with peer.named("dry", params, n_vocab) as sampler:
        for token in history:
            peer.lib.llama_sampler_accept(sampler, token)
        peer.lib.llama_sampler_apply(sampler, byref(candidates.array))
    return [[token, float(f"{-logit:.7g}")] for token, logit in sorted(candidates.left().items()) if logit]


def float_at(sampler: Any, offset: int) -> float:
    return float(c_float.from_address(sampler.contents.ctx + offset).value)


def mirostat_golden(peer: Peer, params: SamplingParams) -> list[dict[str, Any]]:
    """For each step the token drawn, mu after it, and how many tokens it was drawn from."""
    steps = []
    version, tau, eta = params.mirostat, params.mirostat_tau, params.mirostat_eta
    made = ("mirostat", 400, SEED, tau, eta, 100) if version == 1 else ("mirostat_v2", SEED, tau, eta)
    with peer.sampler("temp", params.temperature) as temperature, peer.sampler(*made) as mirostat:
        assert float_at(mirostat, MU_AT[version]) == 2 * tau, "llama.cpp's structure has changed"
        for logits in cases.step_rows():
            candidates = Candidates(logits, finite=True)
            peer.lib.llama_sampler_apply(temperature, byref(candidates.array))
            peer.lib.llama_sampler_apply(mirostat, byref(candidates.array))
            step = {"token": candidates.selected(), "mu": float_at(mirostat, MU_AT[version])}
            steps.append(step | {"count": int(candidates.array.size)})
    return steps


def adaptive_golden(peer: Peer, params: SamplingParams) -> list[dict[str, Any]]:
    """For each step the token drawn, the probabilities it was drawn with, and the average after it."""
    steps = []
    with (
        peer.named("min_p", params, 400) as min_p,
        peer.named("adaptive_p", params, 400) as adaptive,
    ):
        weight = 1 / (1 - params.adaptive_decay)
        assert abs(float_at(adaptive, WEIGHT_AT) - weight) < 1e-4, "llama.cpp's structure has changed"
        for logits in cases.step_rows():
            candidates = Candidates(logits, finite=True)
            before = list(candidates.left())
            peer.lib.llama_sampler_apply(min_p, byref(candidates.array))
            peer.lib.llama_sampler_apply(adaptive, byref(candidates.array))
            token = candidates.selected()
            peer.lib.llama_sampler_accept(adaptive, token)
            mean = float_at(adaptive, SUM_AT) / float_at(adaptive, WEIGHT_AT)
            steps.append({"token": token, "mean": mean} | summary(candidates.left(), before))
    return steps


def make(peer: Peer) -> dict[str, Any]:
    tokenizer = from_gguf(demo.path())
    texts = [tokenizer.encode(text, add_special=False) for text in cases.TEXTS]
    histories = [*texts, *cases.token_histories()]
    return {
        "rows": {name: zlib.crc32(logits.tobytes()) for name, logits in cases.ROWS.items()},
        "chains": {
            f"{chain} | {row}": chain_golden(peer, logits, params, finite=is_finite(chain))
            for chain, params in cases.CHAINS.items()
            for row, logits in cases.ROWS.items()
        },
        "histories": histories,
        "dry": {
            name: [dry_golden(peer, params, history, tokenizer.n_vocab) for history in histories]
            for name, params in cases.DRY.items()
        },
        "mirostat": {name: mirostat_golden(peer, params) for name, params in cases.MIROSTAT.items()},
        "adaptive": {name: adaptive_golden(peer, params) for name, params in cases.ADAPTIVE.items()},
    }


def is_finite(chain: str) -> bool:
    return chain.startswith(cases.NO_ENTROPY_OF_INFINITY)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        llama = find(Path(folder))
        if llama is None:
            raise SystemExit(MISSING)
        with llama.model(str(demo.path()), vocab_only=True) as model:
            llama._lib.llama_model_get_vocab.restype = c_void_p
            llama._lib.llama_model_get_vocab.argtypes = [c_void_p]
            goldens = make(Peer(llama, llama._lib.llama_model_get_vocab(model)))
    text = json.dumps(goldens, separators=(",", ":"))
    OUT.write_text(text.replace('],"', '],\n"').replace("}],", "}],\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
