"""How well models predict and remember with smaller types of keys and values: ours beside llama.cpp's.

    python bench/peers.py build                         # llama.cpp, once; without it ours is measured alone
    python bench/cache_types.py MODEL.gguf -t 2 --json cache-types.json
    python bench/cache_types.py --read cache-types.json

Both engines get the same tokens of a text that every Python brings (`pydoc_data.topics`). Perplexity is that of
llama-perplexity's rule: the second half of each chunk of 512 tokens. For memory, sentences like "The secret code of the
apple is 4821." stand in the text, and the code is asked for behind it: the log-probability that the model gives to a
code, and how many it would write. Each type of cache is measured as it is stored and `plain`, which means without the
rotation of keys and values that both engines have. Losses are in 1e-3 nats for each token, beside f16 of the same
engine, with the standard error of the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data import topics
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import peer_llama
from ollama_engine import Engine
from ollama_engine.kvcache import rotation

CHUNK = 512
NAMES = (
    "apple", "amber", "anchor", "arrow", "badger", "bamboo", "basket", "beacon", "berry", "bottle", "branch",
    "bridge", "bronze", "bucket", "butter", "button", "cabin", "cactus", "camel", "candle", "canyon", "carpet",
    "castle", "cedar", "cherry", "circle", "clover", "cobalt", "coffee", "comet", "copper", "coral",
)  # fmt: skip
TYPES = ("f16", "q8_0", "q5_1", "q5_0", "iq4_nl", "q4_1", "q4_0")
Score = Callable[[Sequence[int], Sequence[int]], tuple[list[float], bool]]
"""(prompt, continuation) -> the log-probability of each of its tokens, and whether all are the most probable ones."""


@dataclass(frozen=True)
class Run:
    """What one engine computed with one type of cache."""

    engine: str
    dtype: str
    plain: bool
    logprobs: list[float]
    """Of the tokens that perplexity counts."""
    codes: dict[str, list[float]]
    """For each context, the sums of the codes' log-probabilities."""
    exact: dict[str, float]
    """For each context, the share of codes that the model would write."""


@dataclass(frozen=True)
class Task:
    """What is asked of every engine: (prompt, continuation), each in tokens."""

    chunks: list[tuple[list[int], list[int]]]
    needles: dict[int, list[tuple[list[int], list[int]]]]


def task_of(model: str, n_chunks: int, contexts: Sequence[int], n_codes: int) -> Task:
    text = " ".join(" ".join(topics.topics[name] for name in sorted(topics.topics)).split())
    with Engine(model, num_ctx=CHUNK) as engine:
        ids, first = engine.tokenize(text, add_special=False), engine.tokenize("")
        chunks = [first + ids[at + len(first) : at + CHUNK] for at in range(0, n_chunks * CHUNK, CHUNK)]
        middle = CHUNK // 2 + 1
        needles = {n: _needles(engine, ids, n, n_codes) for n in contexts}
    return Task([(chunk[:middle], chunk[middle:]) for chunk in chunks], needles)


def _needles(engine: Engine, ids: Sequence[int], n_ctx: int, n_codes: int) -> list[tuple[list[int], list[int]]]:
    """Questions behind a text of about `n_ctx` tokens in which the codes are evenly spread."""
    rng = random.Random(n_ctx)
    codes = [(name, str(rng.randrange(1000, 10000))) for name in NAMES[:n_codes]]
    said = [engine.tokenize(f" The secret code of the {name} is {code}.", add_special=False) for name, code in codes]
    room = n_ctx - sum(map(len, said)) - 32
    step, text = room // n_codes, engine.tokenize("")
    for number, sentence in enumerate(said):
        begin, middle = number * step, number * step + step // 2
        text += [*ids[begin:middle], *sentence, *ids[middle : begin + step]]
    return [
        (text + engine.tokenize(f"\n\nThe secret code of the {name} is", add_special=False),
         engine.tokenize(f" {code}", add_special=False))
        for name, code in codes
    ]  # fmt: skip


# -- engines -----------------------------------------------------------------------------------------------------------


@contextmanager
def ours(model: str, dtype: str, plain: bool, n_ctx: int, threads: int) -> Iterator[Score]:
    with ExitStack() as stack:
        if plain:
            stack.enter_context(patch.object(rotation, "ROTATED", ()))
        engine = stack.enter_context(
            Engine(model, num_ctx=n_ctx, parallel=2, threads=threads, kv_cache_type=dtype)  # type: ignore[arg-type]
        )

        def score(prompt: Sequence[int], continuation: Sequence[int]) -> tuple[list[float], bool]:
            (found,) = engine.score(list(prompt), [list(continuation)])
            return list(found.logprobs), found.is_greedy

        yield score


@contextmanager
def llama(model: str, dtype: str, plain: bool, n_ctx: int, threads: int) -> Iterator[Score]:
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"LLAMA_ATTN_ROT_DISABLE": str(int(plain))}))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        library = peer_llama.find(Path(folder))
        assert library is not None
        loaded = stack.enter_context(library.model(model))
        context = stack.enter_context(library.typed_context(loaded, n_ctx, threads, dtype))
        kept: list[int] = []

        def score(prompt: Sequence[int], continuation: Sequence[int]) -> tuple[list[float], bool]:
            ids = np.array([*prompt, *continuation], np.int32)
            pairs = enumerate(zip(kept, prompt, strict=False))
            same = next((i for i, (a, b) in pairs if a != b), min(len(kept), len(prompt)))
            kept[:] = prompt
            return library.score(context, loaded, ids, min(same, len(prompt) - 1), len(prompt))

        yield score


ENGINES = {"ours": ours, "llama.cpp": llama}


def measure(name: str, args: argparse.Namespace, task: Task, dtype: str, plain: bool) -> Run:
    n_ctx = max([CHUNK, *task.needles])
    with ENGINES[name](args.model, dtype, plain, n_ctx, args.threads) as score:
        logprobs = [logprob for chunk in task.chunks for logprob in score(*chunk)[0]]
        codes, exact = {}, {}
        for context, asked in task.needles.items():
            found = [score(*each) for each in asked]
            codes[str(context)] = [sum(scores) for scores, _ in found]
            exact[str(context)] = sum(right for _, right in found) / len(found)
        return Run(name, dtype, plain, logprobs, codes, exact)


# -- the table ---------------------------------------------------------------------------------------------------------


def lost(run: Run, base: Run) -> str:
    difference = 1e3 * (np.array(base.logprobs) - np.array(run.logprobs))
    return f"{difference.mean():.1f} ± {difference.std() / np.sqrt(len(difference)):.1f}"


def table(runs: Sequence[Run]) -> Iterator[str]:
    contexts = list(runs[0].codes)
    yield "| engine | cache | perplexity | lost | " + " | ".join(f"codes at {n}: nats, exact" for n in contexts) + " |"
    yield "|---|---|---:|---:|" + "---:|" * len(contexts)
    bases = {run.engine: run for run in runs if run.dtype == "f16"}
    for run in runs:
        found = [f"{np.mean(run.codes[n]):.2f}, {run.exact[n]:.0%}" for n in contexts]
        cells = [run.engine, run.dtype + ", plain" * run.plain, f"{np.exp(-np.mean(run.logprobs)):.3f}"]
        yield "| " + " | ".join([*cells, lost(run, bases[run.engine]), *found]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--contexts", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--codes", type=int, default=24, choices=range(1, len(NAMES) + 1), metavar="N")
    parser.add_argument("--types", nargs="+", default=TYPES, help="f16 is the first")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--json", type=Path, help="keeps what was measured; what is there already is not done again")
    parser.add_argument("--read", type=Path, help="prints the table of such a file")
    args = parser.parse_args()
    kept = args.read or args.json
    runs = [Run(**run) for run in json.loads(kept.read_text())] if kept and kept.exists() else []
    if args.model and not args.read:
        task = task_of(args.model, args.chunks, args.contexts, args.codes)
        for name in args.engines:
            done = {(run.dtype, run.plain) for run in runs if run.engine == name}
            rotated = rotation.ROTATED if name == "ours" else args.types[1:]
            each = [(dtype, plain) for dtype in args.types for plain in (False, True) if dtype in rotated or not plain]
            for dtype, plain in [one for one in each if one not in done]:
                runs.append(measure(name, args, task, dtype, plain))
                if args.json:
                    args.json.write_text(json.dumps([asdict(run) for run in runs]))
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
