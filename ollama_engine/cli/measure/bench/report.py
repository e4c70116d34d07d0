"""The results of `bench` as text: the conditions, then one table for each question."""

from __future__ import annotations

from typing import Any

from ollama_engine.cli.tables import pairs, table
from ollama_engine.size_texts import size

__all__ = ["report"]

Row = tuple[str, ...]

ONCE = "once (-r 1), so how far a figure is off by chance is not known, most of all for short prompts"


def report(result: dict[str, Any]) -> str:
    tables = [_single(result)]
    if result["parallel"]:
        tables.append(_varied("streams", result["parallel"]))
    if result["depth"]:
        tables.append(_varied("depth", result["depth"]))
    return "\n\n".join([pairs(_conditions(result)), *tables])


def _conditions(result: dict[str, Any]) -> list[tuple[str, str | None]]:
    peak = result["peak_rss_bytes"]
    built, reused = result["graphs"]["built"], result["graphs"]["reused"]
    return [
        ("model", result["model"]),
        ("load", f"{result['load_seconds']:.2f} s"),
        ("peak memory", None if peak is None else size(peak)),
        ("threads", _threads(result)),
        ("flash attention", "on" if result["flash_attention"] else "off"),
        ("cache", f"{result['kv_cache_type']}, {result['num_ctx']} tokens"),
        ("batch size", str(result["batch_size"])),
        ("graphs", f"{built} built, {reused} reused"),
        ("measured", ONCE if result["repetitions"] == 1 else None),
        ("version", f"{result['version']}, ggml {result['ggml_version']}"),
    ]


def _threads(result: dict[str, Any]) -> str:
    singles = [result, *result["depth"]]
    least = min(n for single in singles for n in single["samples"]["threads_in_use"])
    busy = f", as few as {least:.0f} computed: the machine was busy" if least < result["threads"] else ""
    return f"{result['threads']}{busy}"


def _single(result: dict[str, Any]) -> str:
    rows: list[Row] = [("test", "tokens/s", "least", "most")]
    for name, n_tokens in (("prefill", result["n_prompt"]), ("decode", result["n_gen"])):
        if result["samples"][f"{name}_tps"]:
            rows.append((f"{name} {n_tokens}", *_speeds(result, name)))
    return table(rows, right=(1, 2, 3))


def _varied(name: str, measured: list[dict[str, Any]]) -> str:
    """One row for each value, with prompt and answer side by side where they were measured."""
    parts = [part for part in ("prefill", "decode") if measured[0]["samples"][f"{part}_tps"]]
    rows: list[Row] = [(name, *(title for part in parts for title in (f"{part} tokens/s", "least", "most")))]
    for each in measured:
        rows.append((str(each[name]), *(speed for part in parts for speed in _speeds(each, part))))
    return table(rows, right=range(len(rows[0])))


def _speeds(measured: dict[str, Any], part: str) -> Row:
    samples = measured["samples"][f"{part}_tps"]
    median = f"{measured[f'{part}_tps']:.2f}"
    return (median, f"{min(samples):.2f}", f"{max(samples):.2f}") if len(samples) > 1 else (median, "-", "-")
