"""A model's own head as a drafter: tokens/s with and without it, on a made file whose head agrees, or never does.

    python bench/heads.py make OUT.gguf [--type q4_k_m] [--scale 0.0003] [--vocab 65536]
    python bench/heads.py measure FILE.gguf [--rounds 4] [--tokens 128] [--threads 2] [--assistant FILE.gguf]

Random weights accept no guess. In the made file, of Qwen3.5's shape, blocks change little of the stream (`--scale`, in
their norms), so that the next token follows from the last one, and the head passes on the token that it is given. What
it costs is what a trained one costs; how often it is right is chosen by the scale. Tokens are among the first quarter
of the vocabulary, as 94 of 100 are in English and code with the vocabularies of Qwen 3.5, Llama 3 and Command R. Prints
the part that was accepted, and between which values the ratio to no drafts lies (see `bench/drafts.py`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as QuantType
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.drafts import median_interval
from bench.make_model import random_tensor
from bench.make_recurrent import SHAPES, RecurrentShape, add_metadata, layer_tensors, tensor_shapes, tensor_types
from bench.model_shapes import PRESETS, Dims
from ollama_engine import Engine, SamplingParams
from ollama_engine.config import Drafting

N_VOCAB = 65536
"""By default: beside 0.8B, the output then weighs what 248,320 tokens weigh beside 9B: a tenth of a step, and most of
a guess."""
OWN = ("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")


def head_shapes(shape: RecurrentShape) -> Iterator[tuple[str, Dims]]:
    """The tensors of the head and of an output that is not tied, (name, numpy shape)."""
    block = f"blk.{len(shape.layers)}."
    for name, dims in layer_tensors(shape, "*"):
        yield block + name, dims
    yield block + "nextn.eh_proj.weight", (shape.n_embd, 2 * shape.n_embd)
    for name in OWN:
        yield f"{block}{name}.weight", (shape.n_embd,)
    yield "output.weight", (shape.n_vocab, shape.n_embd)


def made(name: str, dims: Dims, random: NDArray[Any], shape: RecurrentShape, scale: float) -> NDArray[Any]:
    """The values of a tensor: random, scaled in norms, or those of a head that passes on its token."""
    _, block, *part = name.split(".") if name.startswith("blk.") else ("", "", name)
    kind = ".".join(part)
    if kind == "nextn.eh_proj.weight":
        return np.eye(*dims, dtype=np.float32)
    if kind.removesuffix(".weight") in (*OWN, "output_norm"):
        return np.ones(dims, np.float32)
    if name == "output.weight":
        random[len(random) // 4 :] = 0
    attends = block and (int(block) == len(shape.layers) or shape.layers[int(block)] == "*")
    if kind == "ssm_norm.weight" or (kind == "attn_norm.weight" and attends):
        return random * np.float32(scale)
    return random * np.float32(scale**0.5) if kind == "post_attention_norm.weight" else random


def make(path: str, preset: str, scale: float, n_vocab: int) -> None:
    """Write the file."""
    shape = replace(SHAPES["qwen35"], n_vocab=n_vocab)
    n_layer = len(shape.layers)
    shape = replace(shape, keys={**shape.keys, "nextn_predict_layers": 1, "block_count": n_layer + 1})
    writer = gguf.GGUFWriter(path, shape.arch)
    add_metadata(writer, shape, preset)
    kinds = tensor_types(preset, shape)
    alike = {name: name.replace(f"blk.{n_layer}.", "blk.3.") for name, _ in head_shapes(shape)}
    kinds |= {name: kinds.get(other, QuantType.F32) for name, other in alike.items()}
    kinds["output.weight"] = QuantType.Q6_K
    rng = np.random.Generator(np.random.SFC64(0))
    for name, dims in (*tensor_shapes(shape), *head_shapes(shape)):
        values = made(name, dims, random_tensor(rng, name, dims, kinds[name]), shape, scale)
        writer.add_tensor(name, values, raw_dtype=kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(path: str, rounds: int, tokens: int, threads: int, assistant: str | None) -> None:
    """Print tokens/s without drafts, by lookup and by the head or assistant, medians of rounds in turn."""
    own: Drafting = "mtp" if assistant is None else "model"
    speeds: dict[Drafting, list[float]] = {"off": [], "lookup": [], own: []}
    drafted, accepted = Counter[str](), Counter[str]()
    with Engine(path, draft=own, draft_model=assistant, num_ctx=1024, parallel=1, threads=threads) as engine:
        for number in range(rounds + 1):  # the first one warms up
            prompt = np.random.default_rng(number).integers(300, 16000, 16).tolist()
            for way, of_way in speeds.items():
                params = SamplingParams(temperature=0, max_tokens=tokens)
                begin = time.perf_counter()
                answer = engine.generate(prompt, params, draft=way, cache=False)
                if number:
                    of_way.append(len(answer.tokens) / (time.perf_counter() - begin))
                    drafted[way] += answer.usage.drafted_tokens
                    accepted[way] += answer.usage.accepted_tokens
    for way, of_way in speeds.items():
        ratios = [with_drafts / without for with_drafts, without in zip(of_way, speeds["off"], strict=True)]
        low, high, confidence = median_interval(ratios)
        print(
            f"{way}: {statistics.median(of_way):.1f} tokens/s; ratio {statistics.median(ratios):.2f}, {low:.2f} to "
            f"{high:.2f} ({100 * confidence:.0f} %); accepted {accepted[way]} of {drafted[way]}", flush=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("path", metavar="OUT.gguf")
    making.add_argument("--type", type=str.lower, choices=PRESETS, default="q4_k_m")
    making.add_argument("--scale", type=float, default=0.0003)
    making.add_argument("--vocab", type=int, default=N_VOCAB)
    measuring = commands.add_parser("measure")
    measuring.add_argument("path", metavar="FILE.gguf")
    measuring.add_argument("--rounds", type=int, default=4)
    measuring.add_argument("--tokens", type=int, default=128)
    measuring.add_argument("--threads", type=int, default=2)
    measuring.add_argument("--assistant", metavar="FILE.gguf", help="Gemma 4's: see bench/assistants.py")
    args = parser.parse_args()
    if args.command == "make":
        make(args.path, args.type, args.scale, args.vocab)
    else:
        measure(args.path, args.rounds, args.tokens, args.threads, args.assistant)


if __name__ == "__main__":
    main()
