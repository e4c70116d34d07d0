"""The self-test passes here, and finds faults: a kernel that is off by one bit, other weights, another draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ollama_engine import demo
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.sample import Sampler, sampler_instructions
from ollama_engine.selftest import __main__ as program
from ollama_engine.selftest import answers, kernels, parts
from ollama_engine.selftest.check import Check, WrongResultError

Fault = Callable[[pytest.MonkeyPatch], None]


def test_this_installation_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 0
    *lines, last = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) > 50
    assert all(line.startswith("ok ") for line in lines)
    assert last.startswith(f"all {len(lines)} checks passed in ")


def test_what_needs_a_package_that_is_missing_is_not_run_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> str:
        raise AssertionError("it was run")

    monkeypatch.setattr(program, "kernel_checks", lambda: iter([Check("runs", lambda: "right")]))
    monkeypatch.setattr(program, "part_checks", lambda: iter([Check("a form", run, needs="no_such_package")]))
    monkeypatch.setattr(program, "answer_checks", lambda: iter(()))
    assert program.main([]) == 0
    *_, passed, missing = capsys.readouterr().out.splitlines()
    assert passed.startswith("all 1 checks passed in ")
    assert missing == "not run: a form, which needs the package no_such_package (pip install no_such_package)"


def check(name: str) -> Check:
    checks = [*kernels.kernel_checks(), *parts.part_checks(), *answers.answer_checks()]
    return next(check for check in checks if check.name == name)


def off_by_one_bit(module: Any, name: str) -> Fault:
    """Every instruction set but plain C computes numbers whose last bit is another one."""
    right = getattr(module, name)

    def wrong(*operands: Any, **options: Any) -> Tensor:
        out: Tensor = right(*operands, **options)
        plain = "scalar" in operands or options.get("instructions") == "scalar"
        return out if plain else ops.scale(out, 1 + 2**-23)

    return lambda patch: patch.setattr(module, name, wrong)


def another_seed(patch: pytest.MonkeyPatch) -> None:
    def sampler(params: Any, size: int, name: str) -> Sampler:
        return Sampler(params if name != sampler_instructions()[-1] else replace(params, seed=99), size, name)

    patch.setattr(parts, "Sampler", sampler)


def another_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demo, "path", demo.vision_path)


FAULTS: dict[str, tuple[str, Fault, str]] = {
    "a product": ("products q4_0", off_by_one_bit(ops, "mul_mat_small_batch"), "differs from plain C"),
    "whole numbers": ("products f16, whole numbers", off_by_one_bit(ops, "mul_mat_small_batch"), "differs from plain"),
    "experts": ("experts q4_K", off_by_one_bit(ops, "mul_mat_id_small_batch"), "differs from plain C"),
    "attention": ("attention q8_0", off_by_one_bit(ops, "paged_attention"), "differs from plain C"),
    "states": ("delta net", off_by_one_bit(ops, "gated_delta_net"), "differs from plain C"),
    "ggml": ("ggml q8_0", lambda patch: patch.setattr(ops, "mul_mat", lambda w, x: ops.scale(RIGHT(w, x), 1.1)),
             "differs from numpy"),
    "a draw": ("sampler", another_seed, "differs from plain C"),
    "another model": ("answers", another_model, "greedy: expected"),
}  # fmt: skip
RIGHT = ops.mul_mat


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name, put_in, says = FAULTS[fault]
    put_in(monkeypatch)
    with pytest.raises(WrongResultError, match=says):
        check(name).run()
    monkeypatch.setattr(program, "kernel_checks", lambda: [check(name), Check("broken", lambda: str(1 // 0))])
    monkeypatch.setattr(program, "part_checks", lambda: [check("store")])
    monkeypatch.setattr(program, "answer_checks", list)
    assert program.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"FAIL {name} ")
    assert "FAILED: ZeroDivisionError" in lines[2]
    assert lines[-2] == f"2 of 3 checks FAILED: {name}, broken"
