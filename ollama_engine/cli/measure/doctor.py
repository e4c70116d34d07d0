"""`ollama-engine doctor`: what this installation can do, whether the store is sound, and whether a model fits."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import ollama_engine
from ollama_engine.cli.measure.devices import refuse_unknown, workers_devices
from ollama_engine.cli.measure.store_health import Health, store_health
from ollama_engine.cli.options import add_options, build, find_model
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.cli.store import model_store
from ollama_engine.cli.tables import number_of, pairs, table
from ollama_engine.config import EngineConfig
from ollama_engine.errors import EngineError
from ollama_engine.ml.device.device_info import system_line
from ollama_engine.runner.prefix_store.folder_contents import prefix_folder, stored_models
from ollama_engine.size_texts import size

if TYPE_CHECKING:
    from ollama_engine.ml.device.device_info import Device

__all__ = ["add_arguments", "main"]

SETS: Final = {
    "AVX": "avx", "AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "BMI2": "bmi2", "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16",
    "AMX": "amx_bf16", "NEON": "asimd", "DOTPROD": "asimddp", "MATMUL_INT8": "i8mm", "SVE": "sve",
}  # fmt: skip
"""ggml's names of instruction sets that matter for speed -> Linux's."""
OF_X86: Final = ("AVX", "FMA", "F16C", "BMI2", "AMX")
LIBRARIES: Final = ("CUDA", "Vulkan", "Metal")
NOT_ENGINE = ("verify", "max_queue")
CPU_FLAGS = Path("/proc/cpuinfo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="also say whether this model fits into memory, by "
                        "loading it")  # fmt: skip
    parser.add_argument("--verify", action="store_true", help="read all blobs of the store, to find damaged ones")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(parser, "engine", EngineConfig, skip=NOT_ENGINE)


def main(args: argparse.Namespace) -> None:
    config = build(EngineConfig, args, skip=NOT_ENGINE)
    devices = (*ollama_engine.Engine.devices(), *workers_devices(config.devices))
    refuse_unknown(config.devices or (), devices)
    with StatusLine(sys.stderr) as line:
        health = store_health(model_store(), verify=args.verify, progress=LoadingBar(line, "reading blobs", eta=True))
    report: dict[str, Any] = {
        "build": _build(),
        "instruction_sets": _instruction_sets(devices, _cpu_flags()),
        "system": system_line(devices),
        "devices": _devices(devices),
        "store": health.as_json(),
        "kernels": _kernels(config),
        "prefixes": _prefixes(config),
    }
    if args.model is not None:
        report["model"] = _fits(args.model, config)
    print(json.dumps(report, indent=2) if args.json else _text(report, health))


def _machine() -> ModuleType:
    from ollama_engine.cli.measure import machine  # noqa: PLC0415 (loads ggml's library; --help needs none)

    return machine


# -- what was built ----------------------------------------------------------------------------------------------------


def _build() -> dict[str, str]:
    return {
        "version": ollama_engine.__version__,
        "ggml": _machine().ggml_version(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "package": str(Path(ollama_engine.__file__).parent),
    }


def _cpu_flags() -> set[str] | None:
    """The CPU's flags, by Linux's names; None where the system does not say."""
    try:
        text = CPU_FLAGS.read_text()
    except OSError:
        return None
    lines = (line.partition(":")[2] for line in text.splitlines() if line.startswith(("flags", "Features")))
    return set(next(lines, "").split())


def _instruction_sets(devices: tuple[Device, ...], flags: set[str] | None) -> dict[str, str]:
    """For each instruction set of this kind of CPU: "used", or why not."""
    built = {name for device in devices if device.kind == "cpu" for name in device.features}
    built |= {"AMX"} if _machine().amx_allowed() else set()  # by kernels of this package, not by ggml's
    x86 = platform.machine() in ("x86_64", "AMD64", "i686")
    return {
        name: "used" if name in built
        else "not known whether this CPU has it; this build does not use it" if flags is None
        else "this CPU has it, but the build or the system does not let it be used" if flag in flags
        else "this CPU does not have it"
        for name, flag in SETS.items()
        if name.startswith(OF_X86) == x86
    }  # fmt: skip


def _devices(devices: tuple[Device, ...]) -> list[dict[str, Any]]:
    """The devices that are used, and what there would be with another build."""
    rows: list[dict[str, Any]] = [
        {"name": d.name, "used": True, "description": d.description, "memory": d.memory_total, "free": d.memory_free}
        for d in devices
    ]
    built = {device.library for device in devices}
    for library in LIBRARIES:
        if library not in built and (library == "Metal") == (platform.system() == "Darwin"):
            why = f"not built in, or no device found; build with OLLAMA_ENGINE_{library.upper()}=ON"
            rows.append({"name": library, "used": False, "description": why})
    return rows


def _kernels(config: EngineConfig) -> dict[str, Any]:
    """Which kernels measuring chose for this CPU and number of threads, and where that is kept."""
    try:
        file, choice = _machine().kept_kernels(config)
    except (ValueError, OSError) as error:
        return {"file": None, "chosen": [], "problem": str(error)}
    return {"file": file, "chosen": list(choice.measured), "problem": None}


def _prefixes(config: EngineConfig) -> dict[str, Any]:
    """What the prefix store has, in the folder of these options or in that which servers use."""
    option = str(config.prefix_store)
    try:
        folder = prefix_folder("on" if option == "off" else option)
    except OSError as error:
        return {"folder": None, "models": 0, "size": 0, "hits": 0, "problem": str(error)}
    models = stored_models(folder) if folder is not None else []
    return {
        "folder": str(folder),
        "models": len(models),
        "size": sum(model.nbytes for model in models),
        "hits": sum(model.hits for model in models),
        "problem": None,
    }


# -- a model -----------------------------------------------------------------------------------------------------------


def _fits(model: str, config: EngineConfig) -> dict[str, Any]:
    """Whether a model can be loaded with these options, and the memory it takes."""
    options = {field.name: getattr(config, field.name) for field in fields(config)}
    path, stored = find_model(model)
    projector = None if stored is None else stored.projector_path
    try:
        with (
            StatusLine(sys.stderr) as line,
            ollama_engine.Engine(path, **options, projector=projector, progress=LoadingBar(line, "loading")) as engine,
        ):
            return {"path": path, "fits": True, "num_ctx": engine.info.num_ctx, "memory": str(engine.memory)}
    except EngineError as error:
        return {"path": path, "fits": False, "why": str(error)}


# -- for people --------------------------------------------------------------------------------------------------------


def _text(report: dict[str, Any], health: Health) -> str:
    sets = report["instruction_sets"]
    used = " ".join(name for name, state in sets.items() if state == "used")
    rows = [*report["build"].items(), ("CPU uses", used or "nothing special"), ("system", report["system"])]
    parts = [pairs(rows)]
    unused = [(f"  {name}", state) for name, state in sets.items() if state != "used"]
    if unused:
        parts.append("CPU does not use\n" + table(unused))
    devices = [
        (device["name"], "used" if device["used"] else "not used",
         f"{device['description']}, {size(device['free'])} free of {size(device['memory'])}" if device["used"]
         else device["description"])
        for device in report["devices"]
    ]  # fmt: skip
    parts.append(table(devices))
    parts.append(health.text())
    parts.append(_kernels_text(report["kernels"]))
    prefixes = report["prefixes"]
    kept = f"{size(prefixes['size'])} of {number_of(prefixes['models'], 'model')} in {prefixes['folder']}, "
    kept += f"from which {number_of(prefixes['hits'], 'prompt')} went on"
    parts.append(f"prefix store: {prefixes['problem'] or kept}")
    if "model" in report:
        parts.append(_model_text(report["model"]))
    parts.append(
        f"`{Path(sys.executable).name} -m ollama_engine.selftest` shows whether kernels and answers are right here"
    )
    return "\n\n".join(parts)


def _kernels_text(kernels: dict[str, Any]) -> str:
    if kernels["problem"] is not None:
        return f"kernels are chosen by the built-in table: {kernels['problem']}"
    if not kernels["chosen"]:
        return f"kernels are chosen by the built-in table; none was measured yet (for {kernels['file']})"
    return "\n".join([f"kernels, measured ({kernels['file']}):", *(f"  {line}" for line in kernels["chosen"])])


def _model_text(model: dict[str, Any]) -> str:
    if model["fits"]:
        return f"{model['path']} fits, with num_ctx {model['num_ctx']}:\n{model['memory']}"
    return f"{model['path']} cannot be loaded: {model['why']}"
