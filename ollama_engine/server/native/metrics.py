"""Metrics of loaded models as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ollama_engine.server.managing import LoadedModel

__all__ = ["ModelsCollector"]

PREFIX = "ollama_engine_"

COUNTERS = {
    "prompt_tokens": "Prompt tokens that were computed",
    "cached_tokens": "Prompt tokens that were reused from the prefix cache",
    "completion_tokens": "Tokens that were sampled",
    "drafted_tokens": "Tokens that were guessed and computed beside those of answers",
    "accepted_tokens": "Guessed tokens that were right",
    "preemptions": "Requests that gave up their cells to an older one",
    "embedded_texts": "Texts that were embedded",
    "embedded_tokens": "Tokens of texts that were embedded",
    "embed_batches": "Batches of texts that were embedded",
    "embed_seconds": "Seconds of embedding texts",
    "encoded_images": "Images that were encoded",
    "encode_seconds": "Seconds of encoding images",
    "image_hits": "Images that a request needed and that were encoded already",
    "prefix_store_read_tokens": "Prompt tokens whose keys and values were read from the prefix store",
    "prefix_store_written_tokens": "Tokens whose keys and values were written to the prefix store",
    "prefix_store_left_tokens": "Prompt tokens in the prefix store that were computed, because reading takes longer",
    "expert_uses": "Times that a layer used an expert, of models with an expert cache",
    "expert_misses": "Those for which the expert was neither in memory nor being read",
    "experts_read_ahead": "Experts that were read before they were chosen",
    "experts_used_ahead": "Those of them that were chosen",
    "expert_bytes_read": "Bytes of experts that were read",
    "sleeps": "How often the model's memory was given back, and what it holds kept in a file",
    "wake_seconds": "Seconds of taking that memory again, for which requests waited",
    "evictions": "Sequences that left the prefix cache",
    "shifts": "Full contexts that were shifted",
    "moved_cells": "Cells of the cache that were moved together",
    "steps": "Forward passes",
    "graphs_built": "Steps that needed a new graph",
    "graphs_reused": "Steps that used a graph again",
}
GAUGES = {
    "queued": "Requests that wait",
    "running": "Requests that are computed",
    "prompt_tokens_per_second": "Prompt tokens computed per second, over the last seconds",
    "completion_tokens_per_second": "Tokens sampled per second, over the last seconds",
    "image_cache_bytes": "Host memory that embeddings of images take",
}
CELLS = ("used", "free", "shared")


class ModelsCollector(Collector):
    """Metrics of the models that are loaded or sleep, each with the label "model".

    Counters begin at 0 when a model is loaded. Of those that sleep, memory is left out: the system has it.
    """

    def __init__(
        self, models: Sequence[tuple[LoadedModel, Mapping[str, Any]]],
        sleeping: Sequence[tuple[LoadedModel, Mapping[str, Any]]] = (),
    ) -> None:  # fmt: skip
        self._awake = [(row, row.model.stored.name, values) for row, values in models]
        self._asleep = [(row, row.model.stored.name, values) for row, values in sleeping]
        self._models = [*self._awake, *self._asleep]

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """One family for each metric, with a sample for each model."""
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=["model"])
            for _, model, values in self._models:
                counter.add_metric([model], values[name])
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model"])
            for _, model, values in self._models:
                gauge.add_metric([model], values[name])
            yield gauge
        yield self._sleeping()
        yield self._cells()
        yield self._requests()
        yield self._steps()
        yield self._memory()
        yield self._devices()

    def _sleeping(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + "sleeping", "Whether the model's memory is given back", labels=["model"])
        for models, value in ((self._awake, 0), (self._asleep, 1)):
            for _, model, _values in models:
                family.add_metric([model], value)
        return family

    def _cells(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + "kv_cells", "Cells of the key and value cache", labels=["model", "state"])
        for _, model, values in self._models:
            for state, count in zip(CELLS, values["cells"], strict=True):
                family.add_metric([model, state], count)
        return family

    def _requests(self) -> CounterMetricFamily:
        family = CounterMetricFamily(PREFIX + "requests", "Requests that ended", labels=["model", "kind", "outcome"])
        for _, model, values in self._models:
            for kind, outcomes in values["requests_by_kind"].items():
                for outcome, count in outcomes.items():
                    family.add_metric([model, kind, outcome], count)
        return family

    def _steps(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(PREFIX + "step_seconds", "How long forward passes took", labels=["model"])
        for _, model, values in self._models:
            histogram = values["step_seconds"]
            buckets, below = [], 0
            bounds = [*map(_bound, histogram["bounds"]), "+Inf"]
            for bound, count in zip(bounds, histogram["counts"], strict=True):
                below += count
                buckets.append((bound, below))
            family.add_metric([model], buckets, histogram["total"])
        return family

    def _memory(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + "model_bytes", "Memory that a model takes", labels=["model", "place"])
        for row, model, _ in self._awake:
            facts = row.model.facts
            family.add_metric([model, "all"], facts.memory_bytes)
            family.add_metric([model, "device"], facts.device_bytes)
        return family

    def _devices(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            PREFIX + "device_bytes", "Memory that a model takes on each device", labels=["model", "device", "kind"]
        )
        for _, model, values in self._awake:
            for device, kinds in values["device_bytes"].items():
                for kind, nbytes in kinds.items():
                    family.add_metric([model, device, kind], nbytes)
        return family


def _bound(value: float) -> str:
    return f"{value:.6g}"
