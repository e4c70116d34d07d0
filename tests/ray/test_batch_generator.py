"""BatchGenerator: columns in, columns out; every row answered once, whatever ends. Without Ray, and in Ray Data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError, ContextOverflowError
from ollama_engine.ray import BatchGenerator

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


def keys(folder: Path) -> Counter[int]:
    """How often each id is answered in a folder."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_bytes().splitlines(keepends=True)]
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return Counter(row["key"] for row in whole if "key" in row)


JOB = """
import os, sys
import ray
from ollama_engine import SamplingParams, demo
from ollama_engine.ray import BatchGenerator
ray.init(address="local", include_dashboard=False, num_cpus=2, object_store_memory=100 << 20, log_to_driver=False,
         logging_level="ERROR")
rows = ray.data.range({n}).map(lambda row: {{**row, "prompt": f"Day {{row['id']}}:"}})
answers = rows.map_batches(
    BatchGenerator, fn_constructor_args=[str(demo.path()), SamplingParams(max_tokens=3, temperature=0)],
    fn_constructor_kwargs={{"engine": {engine!r}, "checkpoint": sys.argv[1], "id_column": "id"}},
    compute=ray.data.ActorPoolStrategy(size=2), batch_size=64, num_cpus=0.5,
)
for row in answers.iter_rows():
    print(row["id"], row["answer"].replace("\\n", " "), flush=True)
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_ray_data_job_that_is_killed_answers_every_row_once(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="the extra `ray` is not installed")
    n = 2000
    rows = run_job(tmp_path / "answers", n, until=lambda so_far: len(so_far) >= 300)
    assert len(rows) < n
    left = keys(tmp_path / "answers")
    assert set(left.values()) == {1}
    rows = run_job(tmp_path / "answers", n, until=lambda _: False)
    assert sorted(rows) == list(range(n))
    answered = keys(tmp_path / "answers")
    assert answered == Counter(range(n))


def run_job(folder: Path, n: int, until: Callable[[list[int]], bool]) -> list[int]:
    """The ids that the job prints. It and all its processes are killed as soon as `until` says so."""
    script = JOB.format(n=n, engine=ENGINE)
    job = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert job.stdout is not None
    found: list[int] = []
    for line in job.stdout:
        found.append(int(line.split()[0]))
        if until(found):
            job.kill()
            break
    job.wait()
    job.stdout.close()
    return found
