"""Which devices and how many threads to use. Pure decisions."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ollama_engine.config import RANGES, FlashAttention, check_options
from ollama_engine.errors import ConfigError, Option
from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.device.worker_address import SCHEME, WorkerAddress, read_address

log = logging.getLogger(__name__)

MAX_THREADS = RANGES["threads"][1]


@dataclass(frozen=True, kw_only=True)
class BackendParams:
    """How one engine uses the machine. Every field takes effect; none is accepted and ignored."""

    threads: int | None = None
    """CPU threads; None chooses the physical cores that this process may use. Never more than its CPUs."""
    devices: tuple[str, ...] | None = None
    """Names of the devices to use beside the CPU, such as "CUDA0" or "rpc://host:50052"; None takes this machine's."""
    gpu_layers: int | None = None
    """Number of layers on GPUs, counted from the last; None puts as many there as fit."""
    main_gpu: int | None = None
    """Number of the device that is filled first, from the output on, in the order of `devices`, or of the GPUs. With
    `tensor_split`, which shares out the layers, it holds the output. None takes the one with most room."""
    tensor_split: tuple[float, ...] | None = None
    """Share of the layers for each device, in the same order, such as (3, 1)."""
    cpu_experts: int | None = None
    """Number of layers, from the first, whose experts stay on the CPU; None keeps as few there as possible."""
    flash_attention: FlashAttention = "auto"
    """Whether attention runs as one pass; "auto" asks the devices."""
    mmap: bool = True
    """Map weights from the file instead of copying them into memory."""

    def __post_init__(self) -> None:
        check_options(self)


def choose_devices(devices: Sequence[Device], params: BackendParams) -> tuple[Device, ...]:
    """The devices that may be used, GPUs first, the CPU last as ggml's graph scheduler wants it."""
    cpus = [d for d in devices if d.kind == "cpu"]
    if not cpus:
        raise ConfigError("this build has no CPU backend; reinstall ollama_engine")
    if params.devices is not None:
        return (*_named_devices(devices, params), cpus[0])
    gpus = [d for d in devices if d.kind == "gpu"] or [d for d in devices if d.kind == "igpu"]
    if not gpus:
        _check_gpu_options_without_gpu(params)
        return (cpus[0],)
    check_numbers([gpu.name for gpu in gpus], params.main_gpu, params.tensor_split)
    if params.gpu_layers == 0:
        return (cpus[0],)
    return (*gpus, cpus[0])


def check_numbers(
    names: Sequence[str], main_gpu: int | None, tensor_split: Sequence[float] | None, what: str = "GPUs"
) -> None:
    """Raise ConfigError where these options mean more devices than there are."""
    if main_gpu is not None and main_gpu >= len(names):
        raise ConfigError(Option("main_gpu"), f" {main_gpu} does not exist; {what}: {', '.join(names)}")
    if tensor_split is not None and len(tensor_split) > len(names):
        raise ConfigError(Option("tensor_split"), f" has {len(tensor_split)} shares for {len(names)} {what}")


def worker_addresses(params: BackendParams) -> list[WorkerAddress]:
    """The workers that `devices` names, each once. Raises ConfigError for what is no address."""
    named = [name for name in params.devices or () if name.startswith(SCHEME)]
    addresses = dict.fromkeys(read_address(name)[0] for name in named)
    return [] if params.gpu_layers == 0 else list(addresses)


def _named_devices(devices: Sequence[Device], params: BackendParams) -> list[Device]:
    """The devices that `devices` names, in that order. Raises ConfigError for names of none."""
    if params.gpu_layers == 0:
        return []
    chosen: list[Device] = []
    for name in params.devices or ():
        same = [device for device in devices if device.kind != "cpu" and _is_named(device, name)]
        if not same:
            if name.upper() == "CPU":
                raise ConfigError(Option("devices"), " names the CPU, which always computes what no other device does",
                                  advice=[("set ", Option("gpu_layers"), " to 0 to use nothing else")])  # fmt: skip
            there = ", ".join(device.name for device in devices if device.kind != "cpu") or "none beside the CPU"
            raise ConfigError(
                Option("devices"), f" names {name!r}, which does not exist; there are: {there}",
                advice=["leave it out to use all GPUs of this machine", "name a worker as rpc://HOST:PORT"],
            )  # fmt: skip
        chosen += [device for device in same if device not in chosen]
    check_numbers([device.name for device in chosen], params.main_gpu, params.tensor_split, "devices")
    return chosen


def _is_named(device: Device, name: str) -> bool:
    """Whether it is the device, or one of the worker, of that name."""
    if not name.startswith(SCHEME):
        return device.name == name
    address, number = read_address(name)
    return device.name.startswith(SCHEME) and read_address(device.name)[0] == address and number in (None, device.index)


def _check_gpu_options_without_gpu(params: BackendParams) -> None:
    if params.main_gpu:
        raise ConfigError(Option("main_gpu"), f" is {params.main_gpu}, but this machine or build has no GPU")
    if params.tensor_split is not None:
        raise ConfigError(Option("tensor_split"), " is given, but this machine or build has no GPU")
    if params.gpu_layers:
        log.warning("gpu_layers=%d has no effect: this machine or build has no GPU; the CPU runs all layers",
                    params.gpu_layers)  # fmt: skip


def choose_threads(requested: int | None) -> int:
    """The requested number, or one thread for each physical core that this process may use.

    Never more than the CPUs that the process may use: ggml's threads wait for each other by spinning, several hundred
    times a step, and one thread too many makes a step take seconds. A larger request is reduced, and the log says so.
    """
    if requested is None:
        return max(1, min(len(_physical(own_cpus())), usable_cpus(), MAX_THREADS))
    usable = usable_cpus()
    if requested > usable:
        log.warning("threads=%d is more than the %d CPUs this process may use; %d threads are used",
                    requested, usable, usable)  # fmt: skip
    return min(requested, usable)


def usable_cpus() -> int:
    """Hardware threads that this process may use at once: its affinity, and the quota of its control group."""
    return min(len(own_cpus()), _cgroup_cpus() or MAX_THREADS)


def own_cpus() -> set[int]:
    """Numbers of the hardware threads that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _physical(cpus: set[int], topology: str | os.PathLike[str] = "/sys/devices/system/cpu") -> set[str]:
    """Groups of hardware threads that share a core; one group per CPU where the topology is unknown."""
    groups = set()
    for cpu in cpus:
        try:
            with open(os.path.join(topology, f"cpu{cpu}/topology/thread_siblings_list"), encoding="ascii") as file:
                groups.add(file.read().strip())
        except OSError:
            groups.add(str(cpu))
    return groups


def _cgroup_cpus(path: str | os.PathLike[str] = "/sys/fs/cgroup/cpu.max") -> int | None:
    """CPUs that the control group allows (quota / period, rounded up), None when it sets no limit."""
    try:
        with open(path, encoding="ascii") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, -(-int(quota) // int(period)))
