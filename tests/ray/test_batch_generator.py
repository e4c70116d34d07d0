"""BatchGenerator: columns in, columns out; every row answered once, whatever ends. Without Ray, and in Ray Data."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError, ContextOverflowError
from ollama_engine.ray import BatchGenerator
from tests.ray.ray_environment import PATIENCE, command, kill, processes, ray_environment

SHORT = SamplingParams(max_tokens=3, temperature=0)
ENGINE = {"num_ctx": 64, "parallel": 4, "threads": 1}


def generator(**options: Any) -> BatchGenerator:
    return BatchGenerator(demo.path(), SHORT, engine=ENGINE, **options)


def batch(*rows: int) -> dict[str, Any]:
    return {"prompt": np.array([f"Day {row}:" for row in rows], object), "id": np.array(rows), "more": list(rows)}


def test_a_batch_gets_the_columns_of_the_answers() -> None:
    answer = generator()
    found = answer(batch(1, 2, 3))
    answer.close()
    with Engine(demo.path(), **ENGINE) as engine:
        expected = engine.generate([f"Day {row}:" for row in (1, 2, 3)], SHORT)
    assert found["answer"].tolist() == [completion.text for completion in expected]
    assert found["prompt_tokens"].tolist() == [completion.usage.prompt_tokens for completion in expected]
    assert found["more"] == [1, 2, 3]
    with pytest.raises(ConfigError, match="no column 'prompt'; there are 'text'"):
        answer({"text": []})


def test_rows_that_the_model_cannot_take() -> None:
    bad = {"prompt": np.array(["One", "day " * 100], object)}
    strict, keeping = generator(), generator(on_error="keep")
    with pytest.raises(ContextOverflowError, match="prompt 1: "):
        strict(bad)
    found = keeping(bad)
    assert found["error"][0] == ""
    assert "num_ctx" in found["error"][1] or "tokens" in found["error"][1]
    strict.close()
    keeping.close()


def test_what_one_process_has_answered_no_other_computes(tmp_path: Path) -> None:
    first = generator(checkpoint=tmp_path, id_column="id")
    second = generator(checkpoint=tmp_path, id_column="id")
    found = first(batch(1, 2, 3))
    again = second(batch(3, 4, 1))
    assert again["answer"].tolist()[::2] == [found["answer"][2], found["answer"][0]]
    assert keys(tmp_path) == Counter([1, 2, 3, 4])
    with pytest.raises(ConfigError, match="another prompt with the id 1"):
        second({"prompt": ["else"], "id": [1]})
    first.close()
    second.close()
    with pytest.raises(ConfigError, match="id_column"):
        generator(checkpoint=tmp_path)
    other = BatchGenerator(demo.path(), engine=ENGINE, checkpoint=tmp_path, id_column="id")
    with pytest.raises(ConfigError, match="another job"):
        other(batch(1))
    other.close()


def test_ids_that_two_rows_have_are_refused_before_an_answer_is_kept(tmp_path: Path) -> None:
    """Or the same job, run again, would end with "the answer to another prompt"."""
    answer = generator(checkpoint=tmp_path, id_column="id")
    with pytest.raises(ConfigError, match="'id' has 2 in 2 rows of a batch; name a column that differs in each row"):
        answer(batch(1, 2, 3) | {"id": [1, 2, 2]})
    assert not keys(tmp_path)
    answer.close()


def keys(folder: Path) -> Counter[int]:
    """How often each id is answered in a folder."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_bytes().splitlines(keepends=True)]
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return Counter(row["key"] for row in whole if "key" in row)


N_ROWS = 2000
JOB = f"""
import os, sys, time
import ray
from ollama_engine import SamplingParams, demo
from ollama_engine.ray import BatchGenerator
ray.init(address="local", include_dashboard=False, num_cpus=2, object_store_memory=100 << 20, log_to_driver=False,
         logging_level="ERROR")
folder, go_on = sys.argv[1:]
def prompt(row):
    while row["id"] >= {N_ROWS // 2} and not os.path.exists(go_on):
        time.sleep(0.1)
    return {{**row, "prompt": f"Day {{row['id']}}:"}}
answers = ray.data.range({N_ROWS}, override_num_blocks=20).map(prompt).map_batches(
    BatchGenerator, fn_constructor_args=[str(demo.path()), SamplingParams(max_tokens=3, temperature=0)],
    fn_constructor_kwargs={{"engine": {ENGINE!r}, "checkpoint": folder, "id_column": "id"}},
    compute=ray.data.ActorPoolStrategy(size=2), batch_size=64, num_cpus=0.5,
)
for row in answers.iter_rows():
    print("row", row["id"])
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timing("Ray's processes wait for each other within limits of their own")
@pytest.mark.timeout(1200)  # Ray starts and ends two clusters
def test_a_ray_data_job_whose_processes_are_killed_answers_every_row_once(tmp_path: Path) -> None:
    """First one of the two that have engines, then all of the job, whose second half of rows waits for that."""
    pytest.importorskip("ray.data", reason="the extra `ray` is not installed")
    folder, go_on = tmp_path / "answers", tmp_path / "go on"
    with job(folder, go_on) as (first, ray_folder):
        wait_until(lambda: keys(folder).total() >= 200, first)
        kill(next(pid for pid in processes(ray_folder) if command(pid).startswith("ray::MapWorker")))
        wait_until(lambda: keys(folder).total() >= 600, first)
        for pid in [first.pid, *processes(ray_folder)]:
            kill(pid)
    left = keys(folder)
    assert 600 <= left.total() <= N_ROWS // 2
    assert set(left.values()) == {1}
    go_on.touch()
    with job(folder, go_on) as (second, _):
        lines = second.communicate(timeout=PATIENCE)[0].splitlines()
    assert second.returncode == 0
    rows = [int(line.split()[1]) for line in lines if line.startswith("row ")]  # Ray writes others where it has trouble
    assert sorted(rows) == list(range(N_ROWS))
    assert keys(folder) == Counter(range(N_ROWS))


@contextmanager
def job(folder: Path, go_on: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The job, and the folder that Ray's processes have."""
    with ray_environment() as variables, subprocess.Popen(
        [sys.executable, "-c", JOB, str(folder), str(go_on)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=variables,
    ) as started:  # fmt: skip
        try:
            yield started, variables["RAY_TMPDIR"]
        finally:
            started.kill()


def wait_until(true: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert running.poll() is None, f"the job ended with {running.returncode}"
        assert time.monotonic() < until
        time.sleep(0.05)
