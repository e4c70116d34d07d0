"""`ollama-engine show MODEL --fit`: which part of a model would go on which device. Nothing is loaded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import ollama_engine
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.options import add_options, build, options_of
from ollama_engine.cli.sizes import read_sizes
from ollama_engine.cli.tables import table
from ollama_engine.config import EngineConfig
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.size_texts import size
from ollama_engine.store.parameters import own_parameters

if TYPE_CHECKING:
    from ollama_engine.ml.device.memory import MemoryReport
    from ollama_engine.ml.device.placement_plan import PlacementPlan, PlannedDevice
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["add_arguments", "main", "refuse_without_fit"]

NOT_PLANNED = ("threads", "max_queue", "verify", "image_cache_bytes")
"""Engine options that change no plan."""
PARALLEL = 1
"""As many answers at a time as `run` gives; an Engine and the server have other defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this report."""
    parser.add_argument("--fit", action="store_true", help="print which layers would go on which device, for what is "
                        "free there now, and nothing else")  # fmt: skip
    parser.add_argument("--gpu-memory", type=read_sizes, metavar="SIZES", help="with --fit: plan for GPUs with this "
                        "much free memory instead, such as 8GiB,24GiB")  # fmt: skip
    add_options(parser, "engine, for --fit", EngineConfig, skip=NOT_PLANNED, defaults={"parallel": PARALLEL})


def main(args: argparse.Namespace, path: str, stored: StoredModel | None) -> None:
    """Print the plan: that of `run` with the same options, a Modelfile's num_ctx among them."""
    from ollama_engine.runner.load.sizes import declared  # noqa: PLC0415 (60 ms; the other reports need none)

    fixed = {"parallel": PARALLEL, **({} if stored is None else own_parameters(stored.parameters, ("num_ctx",)))}
    config = build(EngineConfig, args, skip=NOT_PLANNED, **fixed)
    with GGUFFile(path) as file, declared(file) as (model, _):
        config = config if model is None else config.for_model(model.context_length)
    options = {option.name: getattr(config, option.name) for option in options_of(EngineConfig, NOT_PLANNED)}
    projector = None if stored is None else stored.projector_path
    report = ollama_engine.Engine.plan_memory(path, projector=projector, gpu_memory=args.gpu_memory, **options)
    assert report.placement is not None, "a plan of memory has one"
    plan = report.placement
    text = f"{_text(plan, _states(report))}\n{_context(config, report)}"
    print(json.dumps(facts(report, plan, config), indent=2) if args.json else text)


def refuse_without_fit(args: argparse.Namespace) -> None:
    """Raise UsageError for options of --fit where that is not given."""
    given = [option.flag for option in options_of(EngineConfig, NOT_PLANNED) if hasattr(args, option.name)]
    if args.gpu_memory is not None:
        given.append("--gpu-memory")
    if given:
        raise UsageError(f"{given[0]} has no effect without --fit")


def facts(report: MemoryReport, plan: PlacementPlan, config: EngineConfig) -> dict[str, Any]:
    """The plan for JSON; sizes in bytes."""
    mapped, states = {device.device: device.mapped for device in report.devices}, _states(report)
    return {
        "gpu_layers": plan.gpu_layers,
        "layers": len(plan.layers) + 1,
        "cpu_experts": plan.cpu_experts,
        "fits": not plan.overfull,
        "num_ctx": config.num_ctx,
        "parallel": config.parallel,
        "serving": dict(report.serving),
        "devices": [
            {
                "name": device.name,
                "free": device.free,
                "reserve": device.reserve,
                "weights": device.weights,
                "mapped": mapped.get(device.name, 0),
                "cache": device.cache,
                "states": states.get(device.name, 0),
                "graph": device.graph,
                "taken": device.taken + states.get(device.name, 0),
                "overfull": device.overfull,
                "layers": list(device.layers),
                "experts": [i for i, number in enumerate(plan.experts) if plan.devices[number] is device],
                "output": device.output,
                "vision": device.vision,
            }
            for device in plan.devices
        ],
    }


def _states(report: MemoryReport) -> dict[str, int]:
    """Bytes of recurrent states, which no choice of devices depends on, by the name of the device that has them."""
    return {device.device: device.states for device in report.devices if device.states}


def _text(plan: PlacementPlan, states: Mapping[str, int]) -> str:
    names = ("cache", "states", "graph") if states else ("cache", "graph")
    rows: list[tuple[str, ...]] = [("device", "free", "weights", *names, "in all", "layers")]
    for device in plan.devices:
        free, recurrent = "-" if device.free is None else size(device.free), states.get(device.name, 0)
        sizes = {"cache": device.cache, "states": recurrent, "graph": device.graph}
        numbers = (device.weights, *(sizes[name] for name in names), device.taken + recurrent)
        rows.append((device.name, free, *map(size, numbers), ", ".join(_parts(plan, device)) or "-"))
    lines = [
        table(rows, right=tuple(range(1, len(rows[0]) - 1))),
        "",
        f"{plan.gpu_layers} of {len(plan.layers) + 1} layers on GPUs",
    ]
    if plan.cpu_experts:
        lines[-1] += f", experts of {plan.cpu_experts} of them on the CPU"
    lines += [f"{device.name} lacks {size(device.overfull)}" for device in plan.overfull]
    return "\n".join(lines)


def _context(config: EngineConfig, report: MemoryReport) -> str:
    requests = "one request" if config.parallel == 1 else f"{config.parallel} requests"
    line = f"planned for {requests} at a time (--parallel) with {config.num_ctx} tokens each (--num-ctx)"
    later = [f"{purpose} {size(nbytes)}" for purpose, nbytes in report.serving.items()]
    return f"{line}\non top, while serving, at most: {', '.join(later)}" if later else line


def _parts(plan: PlacementPlan, device: PlannedDevice) -> Iterable[str]:
    """The model's parts on a device: runs of layers, output layer, vision tower, experts of layers on other devices."""
    yield from _runs(device.layers)
    if device.output:
        yield "output"
    if device.vision:
        yield "vision"
    if device is plan.devices[plan.cpu]:
        yield "input"
        away = [i for i, experts in enumerate(plan.experts) if experts == plan.cpu != plan.layers[i]]
        yield from (f"experts of {run}" for run in _runs(away))


def _runs(numbers: Iterable[int]) -> Iterable[str]:
    """Whole numbers in runs, in words: 0-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
