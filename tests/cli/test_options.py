"""Dataclass fields as options: every field of every type, given and not given, right and wrong."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

from ollama_engine import demo
from ollama_engine.cli.main import command_parsers
from ollama_engine.cli.options import add_options, build, model_path, options_of
from ollama_engine.config import PYTHON_ONLY, EngineConfig
from ollama_engine.errors import ConfigError
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.sample import SamplingParams

CASES: list[tuple[type, list[str], dict[str, Any]]] = [
    (SamplingParams, [], {}),
    (SamplingParams, ["--temperature", "0.5"], {"temperature": 0.5}),
    (SamplingParams, ["--top-k", "0", "--top-p", "1", "--min-p", "0.05"], {"top_k": 0, "top_p": 1.0, "min_p": 0.05}),
    (SamplingParams, ["--seed", str(2**64 - 1)], {"seed": 2**64 - 1}),
    (SamplingParams, ["--max-tokens", "7"], {"max_tokens": 7}),
    (SamplingParams, ["--stop", "a b", "--stop", "\n"], {"stop": ("a b", "\n")}),
    (SamplingParams, ["--stop=-x"], {"stop": ("-x",)}),
    (SamplingParams, ["--repeat-last-n", "-1"], {"repeat_last_n": -1}),
    (SamplingParams, ["--repeat-penalty", "1.1"], {"repeat_penalty": 1.1}),
    (SamplingParams, ["--presence-penalty", "-1.5", "--frequency-penalty=.5"],
     {"presence_penalty": -1.5, "frequency_penalty": 0.5}),
    (SamplingParams, ["--logit-bias", "123=-inf", "--logit-bias", "5=2"], {"logit_bias": {123: -math.inf, 5: 2.0}}),
    (SamplingParams, ["--logprobs", "3"], {"logprobs": 3}),
    (SamplingParams, ["--prompt-logprobs", "0"], {"prompt_logprobs": 0}),
    (RequestOptions, ["--reasoning-budget", "9"], {"reasoning_budget": 9}),
    (SamplingParams, ["--typical-p", ".9", "--top-n-sigma", "1.5", "--min-keep", "2"],
     {"typical_p": 0.9, "top_n_sigma": 1.5, "min_keep": 2}),
    (SamplingParams, ["--xtc-probability", "0.5", "--xtc-threshold", "0.2"],
     {"xtc_probability": 0.5, "xtc_threshold": 0.2}),
    (SamplingParams, ["--dynatemp-range", "0.5", "--dynatemp-exponent", "2"],
     {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0}),
    (SamplingParams, ["--dry-multiplier", "0.8", "--dry-base", "2", "--dry-allowed-length", "3"],
     {"dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3}),
    (SamplingParams, ["--dry-penalty-last-n", "-1", "--dry-sequence-breakers", "\n", "--dry-sequence-breakers", "."],
     {"dry_penalty_last_n": -1, "dry_sequence_breakers": ("\n", ".")}),
    (SamplingParams, ["--mirostat", "2", "--mirostat-tau", "4", "--mirostat-eta", ".2"],
     {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2}),
    (SamplingParams, ["--adaptive-target", "0.3", "--adaptive-decay", "0.5"],
     {"adaptive_target": 0.3, "adaptive_decay": 0.5}),
    (SamplingParams, ["--samplers", "top_k;temperature"], {"samplers": ("top_k", "temperature")}),
    (SamplingParams, ["--samplers", "min_p", "--samplers", "xtc"], {"samplers": ("min_p", "xtc")}),
    (EngineConfig, [], {}),
    (EngineConfig, ["--num-ctx", "64", "--batch-size", "8"], {"num_ctx": 64, "batch_size": 8}),
    (EngineConfig, ["--threads", "3"], {"threads": 3}),
    (EngineConfig, ["-t", "3"], {"threads": 3}),
    (EngineConfig, ["-t3"], {"threads": 3}),
    (EngineConfig, ["--gpu-layers", "0", "--main-gpu", "1"], {"gpu_layers": 0, "main_gpu": 1}),
    (EngineConfig, ["--cpu-experts", "8"], {"cpu_experts": 8}),
    (EngineConfig, ["--device", "CUDA0", "--device", "rpc://h:1"], {"devices": ("CUDA0", "rpc://h:1")}),
    (EngineConfig, ["--tensor-split", "3,1"], {"tensor_split": (3.0, 1.0)}),
    (EngineConfig, ["--flash-attention", "off", "--kv-cache-type", "q8_0"],
     {"flash_attention": "off", "kv_cache_type": "q8_0"}),
    (EngineConfig, ["--no-mmap"], {"mmap": False}),
    (EngineConfig, ["--mmap"], {"mmap": True}),
    (EngineConfig, ["--parallel", "2"], {"parallel": 2}),
    (EngineConfig, ["--max-queue", "0"], {"max_queue": 0}),
    (EngineConfig, ["--image-cache-bytes", "1MiB"], {"image_cache_bytes": 1048576}),
    (EngineConfig, ["--state-cache-bytes", "1048576"], {"state_cache_bytes": 1048576}),
    (EngineConfig, ["--draft", "off"], {"draft": "off"}),
    (EngineConfig, ["--prefix-store", "a/folder", "--prefix-store-bytes", "5"],
     {"prefix_store": "a/folder", "prefix_store_bytes": 5}),
    (EngineConfig, ["--draft-model", "small.gguf"], {"draft_model": "small.gguf"}),
    (EngineConfig, ["--expert-cache-bytes", "5"], {"expert_cache_bytes": 5}),
    (EngineConfig, ["--no-measure-kernels"], {"measure_kernels": False}),
    (EngineConfig, ["--verify"], {"verify": True}),
    (RequestOptions, ["--on-overflow", "shift", "--num-keep", "4"], {"on_overflow": "shift", "num_keep": 4}),
    (RequestOptions, ["--timeout", "2.5", "--priority", "-3", "--no-cache"], {"timeout": 2.5, "priority": -3,
    "cache": False}),
    (RequestOptions, ["--cache-salt", "user 7"], {"cache_salt": "user 7"}),
    (RequestOptions, ["--format", "json"], {"format": "json"}),
]  # fmt: skip


def parse(cls: type, argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="x", allow_abbrev=False)
    add_options(parser, "options", cls)
    return parser.parse_args(argv)


@pytest.mark.parametrize(("cls", "argv", "expected"), CASES, ids=lambda c: " ".join(c) if isinstance(c, list) else "")
def test_options_become_the_dataclass(cls: type, argv: list[str], expected: dict[str, Any]) -> None:
    assert build(cls, parse(cls, argv)) == cls(**expected)


def test_every_field_has_a_case() -> None:
    for cls in (SamplingParams, EngineConfig, RequestOptions):
        tried = {name for case_cls, _, expected in CASES if case_cls is cls for name in expected}
        fields = {field.name for field in dataclasses.fields(cls) if PYTHON_ONLY not in field.metadata}
        assert tried == fields


@pytest.mark.parametrize(
    ("cls", "argv", "message"),
    [
        (SamplingParams, ["--temperature", "warm"], "argument --temperature: expected a number, got 'warm'"),
        (SamplingParams, ["--top-k", "1.5"], "argument --top-k: expected a whole number, got '1.5'"),
        (SamplingParams, ["--logit-bias", "12"], "argument --logit-bias: expected ID=NUMBER, got '12'"),
        (SamplingParams, ["--logit-bias", "a=1"], "argument --logit-bias: expected ID=NUMBER, got 'a=1'"),
        (SamplingParams, ["--temp", "1"], "unrecognized arguments: --temp 1"),
        (SamplingParams, ["--seed"], "argument --seed: expected one argument"),
        (EngineConfig, ["--tensor-split", "1,,2"], "argument --tensor-split: expected numbers such as 3,1, got '1,,2'"),
        (
            EngineConfig,
            ["--image-cache-bytes", "half"],
            "expected a number of bytes, or a size such as 512MiB, got 'half'",
        ),
        (EngineConfig, ["--kv-cache-type", "f8"], "argument --kv-cache-type: invalid choice: 'f8'"),
        (EngineConfig, ["--mmap=no"], "ignored explicit argument 'no'"),
    ],
)
def test_text_that_cannot_be_read(cls: type, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(cls, argv)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cls", "argv", "name"),
    [
        (SamplingParams, ["--temperature", "-1"], "temperature"),
        (SamplingParams, ["--temperature", "nan"], "temperature"),
        (SamplingParams, ["--stop", ""], "stop"),
        (SamplingParams, ["--logit-bias", "1=inf"], "logit_bias"),
        (SamplingParams, ["--seed", "-1"], "seed"),
        (EngineConfig, ["--num-ctx", "0"], "num_ctx"),
    ],
)
def test_a_value_out_of_range_is_told_by_its_option(cls: type, argv: list[str], name: str) -> None:
    with pytest.raises(ConfigError, match=name) as told:
        build(cls, parse(cls, argv))
    assert told.value.option == name


def test_fixed_values_count_where_nothing_was_given() -> None:
    assert build(EngineConfig, parse(EngineConfig, []), parallel=1, num_ctx=8) == EngineConfig(parallel=1, num_ctx=8)
    assert build(EngineConfig, parse(EngineConfig, ["--num-ctx", "9"]), num_ctx=8).num_ctx == 9


def test_skipped_fields_have_no_option() -> None:
    assert "parallel" not in {option.name for option in options_of(EngineConfig, skip=("parallel",))}


def test_help_says_what_the_field_says(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclasses.dataclass
    class Half:
        share: float = dataclasses.field(default=0.5, metadata={"help": "100 % of it"})
        wide: bool = dataclasses.field(default=False, metadata={"help": "all of it"})

    with pytest.raises(SystemExit, match="0"):
        parse(Half, ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--share X 100 % of it (default: 0.5)" in shown
    assert "--wide, --no-wide all of it (default: off)" in shown


def test_help_names_options_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclasses.dataclass
    class Named:
        min_keep: int = dataclasses.field(default=0, metadata={"help": "what top_p leaves [a;top_k;min_p;b]"})

    with pytest.raises(SystemExit, match="0"):
        parse(Named, ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--min-keep N what --top-p leaves [a;top_k;min_p;b] (default: 0)" in shown


@pytest.mark.parametrize("command", ["run", "bench", "embed", "serve"])
def test_help_names_flags_that_are_there(command: str) -> None:
    """Of this command, or of `run`."""
    flags = {flag for name in (command, "run") for a in command_parsers()[name]._actions for flag in a.option_strings}
    helps = (action.help or "" for action in command_parsers()[command]._actions)
    named = {flag for text in helps for flag in re.findall(r"--[a-z-]+", text)}
    assert named <= flags


def test_a_type_without_an_option_is_refused() -> None:
    @dataclasses.dataclass
    class Odd:
        parts: dict[str, int] | None = dataclasses.field(default=None, metadata={"help": ""})

    with pytest.raises(TypeError, match="parts"):
        options_of(Odd)


@pytest.mark.parametrize(("text", "value"), [("on", True), ("False", False), ("1", True)])
def test_a_switch_as_a_word(text: str, value: bool) -> None:
    mmap = next(option for option in options_of(EngineConfig) if option.name == "mmap")
    assert mmap.parse(text) is value
    with pytest.raises(ValueError, match="on or off"):
        mmap.parse("maybe")


def test_demo_names_the_packaged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(model_path("demo")) == demo.path()
    assert Path(model_path("demo-vision")) == demo.vision_path()
    assert Path(model_path("Demo:latest")) == demo.path(), "names of models have no case"
    with pytest.raises(FileNotFoundError, match="did you mean demo-vision"):
        model_path("demo_vision")
    with pytest.raises(FileNotFoundError, match=r"directory: './demo'$"):
        model_path("./demo")
    Path("demo").touch()
    assert model_path("./demo") == "./demo"
