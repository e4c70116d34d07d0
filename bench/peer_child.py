"""One engine of .venv-peers (`peer_packages.py`) reads a prompt and decodes behind it; its Python runs this.

    .venv-peers/bin/python bench/peer_child.py ik MODEL.gguf -p 512 -n 64 -t 2 --repack
    .venv-peers/bin/python bench/peer_child.py ik MODEL.gguf -p 512 -n 8 -t 2 -d 8192
    .venv-peers/bin/python bench/peer_child.py xllamacpp MODEL.gguf -p 128 -n 32 -t 2 --streams 8

Prints JSON: seconds to load, tokens/s of the prompt and of decoding, those of all streams together. One stream decodes
behind one token, or behind -d and the prompt. Each engine has read a prompt before, as a program that runs for a while
has. The tokens are random: one token over and over would choose the same experts in every step.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

Speeds = tuple[float, float]
"""Prompt and decoding, tokens/s."""


def token_ids(count: int, seed: int) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(10, 1000) for _ in range(count)]


def serve_turns(decode: Callable[[int], tuple[float, int]]) -> None:
    """Answer each line of the input, a number of tokens, by the seconds that decoding them took, and the threads."""
    for line in sys.stdin:
        print(json.dumps(decode(int(line))), flush=True)


def rounded_up(count: int, step: int = 256) -> int:
    return -(-count // step) * step


# -- ik_llama.cpp ------------------------------------------------------------------------------------------------------


class Ik:
    """By the bindings' C functions: their Python wrapper samples in Python.

    Flash attention as the wrapper chooses it: its kernels for AVX2 end the process on some prompts.
    """

    def __init__(self, asked: argparse.Namespace) -> None:
        self.api, self.streams = import_module("ik_llama_cpp._ctypes_api"), asked.streams
        api = self.api
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers, params.repack_tensors = 0, asked.repack
        params.use_mmap = not asked.repack  # as its own programs do
        self.model = api.llama_model_load_from_file(asked.model.encode(), params)
        options = api.llama_context_default_params()
        options.n_ctx = rounded_up(asked.depth + asked.prompt + asked.generate) * asked.streams
        options.n_batch, options.n_ubatch, options.n_seq_max = 2048, 512, asked.streams
        options.n_threads = options.n_threads_batch = asked.threads
        options.flash_attn = asked.flash
        self.context = self.model and api.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit("ik_llama.cpp did not load the model")

    def run(self, prompt: int, generate: int, depth: int = 0) -> Speeds:
        """`depth`: tokens of context that are read before, of one stream."""
        self.api.llama_kv_cache_clear(self.context)
        streams, end = range(self.streams), depth + prompt
        tokens = [(token, at, s) for s in streams for at, token in enumerate(token_ids(end, s))]
        self._read(tokens[:depth], end - 1)
        read = self._read(tokens[depth:], end - 1)
        answers = [token_ids(generate, self.streams + s) for s in streams]
        steps = [self._decode([(answers[s][i], end + i, s) for s in streams], end + i) for i in range(generate)]
        return (len(tokens) - depth) / read, self.streams * generate / sum(steps)

    def _read(self, tokens: list[tuple[int, int, int]], last: int) -> float:
        return sum(self._decode(tokens[i : i + 2048], last) for i in range(0, len(tokens), 2048))

    def _decode(self, tokens: list[tuple[int, int, int]], last: int) -> float:
        """Seconds for (token, position, stream); logits are computed at position `last` of each stream."""
        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (token, at, stream) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, at, 1
            batch.seq_id[i][0], batch.logits[i] = stream, at == last
        began = time.perf_counter()
        if self.api.llama_decode(self.context, batch):
            sys.exit("ik_llama.cpp could not decode")
        seconds = time.perf_counter() - began
        self.api.llama_batch_free(batch)
        return seconds


# -- xllamacpp ---------------------------------------------------------------------------------------------------------


class XLlamaCpp:
    """llama.cpp's server in this process. With streams: the sum of what each request reports."""

    def __init__(self, asked: argparse.Namespace) -> None:
        xllamacpp = import_module("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = asked.model
        params.n_parallel, params.n_gpu_layers = asked.streams, 0
        params.n_ctx = rounded_up(asked.prompt + asked.generate) * asked.streams
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked.threads
        self.server, self.streams = xllamacpp.Server(params), asked.streams

    def run(self, prompt: int, generate: int) -> Speeds:
        with ThreadPoolExecutor(self.streams) as threads:
            timings = list(threads.map(lambda s: self._ask(token_ids(prompt, s), generate), range(self.streams)))
        return tuple(sum(t[name] for t in timings) for name in ("prompt_per_second", "predicted_per_second"))  # type: ignore[return-value]

    def _ask(self, prompt: list[int], generate: int) -> dict[str, float]:
        wish = {"prompt": prompt, "max_tokens": generate, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        answer = self.server.handle_completions(wish)
        timings: dict[str, float] = (json.loads(answer) if isinstance(answer, str | bytes) else answer)["timings"]
        return timings


# -- OpenVINO ----------------------------------------------------------------------------------------------------------


class OpenVinoGenAi:
    """OpenVINO GenAI, which reads the GGUF file."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.np, self.genai = import_module("numpy"), import_module("openvino_genai")
        self.tensor = import_module("openvino").Tensor
        self.pipeline = self.genai.LLMPipeline(asked.model, "CPU", INFERENCE_NUM_THREADS=asked.threads)
        self.streams, self.seed = asked.streams, 0

    def run(self, prompt: int, generate: int) -> Speeds:
        self.seed += self.streams  # it keeps what prompts begin with
        rows = [token_ids(prompt, self.seed + s) for s in range(self.streams)]
        ids = self.np.array(rows, self.np.int64)
        inputs = self.genai.TokenizedInputs(self.tensor(ids), self.tensor(self.np.ones_like(ids)))
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = generate + 1, True, False
        times = self.pipeline.generate(inputs, config).perf_metrics
        read, token = times.get_ttft().mean / 1000, times.get_tpot().mean / 1000
        return self.streams * prompt / read, 1 / token  # of a step that gives 8 tokens it counts an eighth for each


ENGINES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "ik": Ik, "xllamacpp": XLlamaCpp, "openvino": OpenVinoGenAi,
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("engine", choices=ENGINES)
    made.add_argument("model", metavar="MODEL.gguf")
    made.add_argument("-p", dest="prompt", type=int, default=512)
    made.add_argument("-n", dest="generate", type=int, default=64)
    made.add_argument("-t", dest="threads", type=int, default=2)
    made.add_argument("--streams", type=int, default=1)
    made.add_argument("--repack", action="store_true", help="ik_llama.cpp's run-time repacking")
    made.add_argument("--flash", action="store_true", help="ik_llama.cpp's flash attention")
    made.add_argument("--turns", action="store_true", help="decode as many tokens as each line of the input says (ik)")
    made.add_argument("-d", dest="depth", type=int, default=0, help="tokens of context before (ik, one stream)")
    return made


def main(arguments: Iterable[str] | None = None) -> None:
    asked = parser().parse_args(arguments if arguments is None else list(arguments))
    if asked.depth and (asked.engine != "ik" or asked.streams > 1):
        sys.exit("-d is for one stream of ik_llama.cpp")
    began = time.perf_counter()
    engine = ENGINES[asked.engine](asked)
    loaded = time.perf_counter() - began
    if asked.turns:
        serve_turns(lambda n: (n / engine.run(1, n)[1], asked.threads))
        return
    engine.run(min(asked.prompt, 64), 2)
    if asked.depth or asked.streams > 1:
        read, decoded = engine.run(asked.prompt, asked.generate, *((asked.depth,) if asked.depth else ()))
    else:  # as ours and llama-bench, which decode from an empty context
        read, decoded = engine.run(asked.prompt, 1)[0], engine.run(1, asked.generate)[1]
    print(json.dumps({"load_seconds": loaded, "prefill_tps": read, "decode_tps": decoded}))


if __name__ == "__main__":
    main()
