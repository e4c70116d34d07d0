"""`bench --depth`: what is in the cache when a part is measured, and the figures in JSON and in the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ollama_engine.cli.measure.bench import parts
from ollama_engine.cli.measure.bench.parts import measure_depths, measure_parts
from ollama_engine.cli.measure.bench.plan import BenchPlan
from ollama_engine.config import EngineConfig
from ollama_engine.input import Batch
from ollama_engine.runner.load.loading import Loaded, load
from tests.support.tiny import write_tiny_llama


@pytest.fixture
def loaded(tiny: str) -> Iterator[Loaded]:
    config = EngineConfig(num_ctx=512, parallel=1, threads=1, batch_size=32)
    with closing(load(tiny, config)) as loaded:
        yield loaded


class Watching:
    """An executor that notes the (first position, tokens) of each batch, and checks that nothing is left out."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.batch_size = loaded.executor.batch_size
        self.batches: list[tuple[int, int]] = []

    def prepare(self, batch: Batch) -> None:
        first = int(batch.positions[0])
        assert self._loaded.cache.usage.used == first, "exactly the tokens before this batch are there"
        self._loaded.executor.prepare(batch)
        self.batches.append((first, len(batch)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded.executor, name)


def watched(loaded: Loaded, plan: BenchPlan, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    watching = Watching(loaded)
    shown: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("ollama_engine.cli.measure.bench.parts.time.perf_counter", iter(range(1000)).__next__)
        found = measure_depths(_replaced(loaded, executor=watching), plan, shown.append)
    # Each measurement asks the clock twice, and nothing else does: one "second" each.
    assert [samples["prefill_tps"] for samples in found] == [[plan.n_prompt] * plan.repetitions] * len(plan.depths)
    assert [samples["decode_tps"] for samples in found] == [[plan.n_gen] * plan.repetitions] * len(plan.depths)
    assert shown[0] == f"depth {plan.depths[0]}: computing the context"
    return watching.batches


def _replaced(loaded: Loaded, **others: object) -> Loaded:
    return Loaded(**{name: getattr(loaded, name) for name in Loaded.__slots__} | others)


def test_what_is_computed(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = BenchPlan(40, 2, 1, warmup=True, depths=(0, 50, 70, 10))
    prompt, answer = [(0, 32), (32, 8)], [(0, 1), (1, 1)]

    def behind(depth: int) -> list[tuple[int, int]]:
        """The prompt twice, as it warms up; one token to warm up, then the answer."""
        return [(depth + first, n) for first, n in [*prompt, *prompt, answer[0], *answer]]

    assert watched(loaded, plan, monkeypatch) == [
        *behind(0),
        (0, 32), (32, 18), *behind(50),
        (50, 20), *behind(70),  # goes on from 50
        (0, 10), *behind(10),  # begins anew
    ]  # fmt: skip


class Recovering:
    """A backend on a machine that is busy while the first `batches` are computed."""

    threads = 2

    def __init__(self, watching: Watching, batches: int) -> None:
        self._watching, self._batches = watching, batches

    @property
    def threads_in_use(self) -> int:
        return 2 if len(self._watching.batches) >= self._batches else 1


@pytest.mark.parametrize(("settling", "warm_ups"), [(600.0, 3), (0.0, 1)])
def test_the_warm_up_goes_on_until_all_threads_compute(
    settling: float, warm_ups: int, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "SETTLING", settling)
    watching = Watching(loaded)
    busy = _replaced(loaded, executor=watching, backend=Recovering(watching, 3))
    samples = measure_parts(busy, BenchPlan(8, 0, 1, warmup=True), lambda text: None)
    assert watching.batches == [(0, 8)] * (warm_ups + 1)
    assert samples["threads_in_use"] == [2 if warm_ups == 3 else 1]


def test_a_window_that_has_moved_on_is_computed_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt longer than what a window keeps to resume takes the cells of the context."""
    path = write_tiny_llama(tmp_path / "window.gguf", n_ctx=4096, sliding_window=16).path
    config = EngineConfig(num_ctx=2048, parallel=1, threads=1, batch_size=512)
    begun: list[int] = []
    with closing(load(path, config)) as loaded:
        prepare = loaded.executor.prepare
        monkeypatch.setattr(
            "ollama_engine.runner.execute.executor.Executor.prepare",
            lambda _, batch: (begun.append(int(batch.positions[0])), prepare(batch)),
        )
        measure_depths(loaded, BenchPlan(1900, 1, 2, warmup=False, depths=(100,)), lambda text: None)
    # The context, and again after each prompt.
    prompt = [100, 612, 1124, 1636]
    assert begun == [0, *prompt, 0, *prompt, 0, 100, 100]


def test_json(cli, tiny: str) -> None:
    args = ["bench", tiny, "-p", "24", "-n", "6", "-t", "1", "-r", "2", "--depth", "300,0", "--json"]
    result = cli(*args)
    assert (result.code, result.err) == (0, "")
    found = json.loads(result.out)
    keys = {"depth", "prefill_tps", "decode_tps", "threads_in_use", "samples"}
    assert [set(row) for row in found["depth"]] == [keys] * 2
    assert [row["depth"] for row in found["depth"]] == [300, 0]
    assert all(len(row["samples"]["decode_tps"]) == 2 and row["decode_tps"] > 0 for row in found["depth"])
    assert found["num_ctx"] == 512


def test_a_part_left_out(cli, tiny: str) -> None:
    result = cli("bench", tiny, "-p", "0", "-n", "2", "-t", "1", "-r", "1", "--depth", "0,8")
    assert (result.code, result.err) == (0, "")
    last = result.out.split("\n\n")[-1].splitlines()
    assert last[0].split() == ["depth", "decode", "tokens/s", "least", "most"]
    assert [line.split()[0] for line in last[1:]] == ["0", "8"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--depth=-1,0"], "--depth are numbers of tokens, 0 or more; got -1"),
        (["--depth", ""], "expected whole numbers such as 1,2,4, got ''"),
        (["--depth", str(1 << 30)], "--depth are 16777216 together at most"),
    ],
)
def test_wrong_usage(cli, tiny: str, args: list[str], message: str) -> None:
    result = cli("bench", tiny, *args)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
