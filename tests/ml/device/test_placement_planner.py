"""What lies where: plans for models and machines that the tests make up. They are counted anew here, part by part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.errors import ConfigError
from ollama_engine.ml.device.placement_plan import LayerSizes, ModelSizes, PlacementOptions, PlacementPlan, Room
from ollama_engine.ml.device.placement_planner import plan_placement
from tests.support.suite import scaled

DENSE = ModelSizes(layers=(LayerSizes(100, cache=10),) * 4, output=50, input=50, graph=20, output_graph=5)
"""515 of weights, cache and graph on one GPU."""
MIXTURE = ModelSizes(layers=(LayerSizes(100, 1000, 10),) * 4, output=50, input=50, graph=20, output_graph=5)


def rooms(*free: int, reserve: int = 0) -> list[Room]:
    return [Room(f"GPU{number}", size, reserve) for number, size in enumerate(free)]


def shown(plan: PlacementPlan) -> str:
    """Device numbers of layers, output and vision tower, "c" for the CPU; lower case where only experts are there."""
    names = "ABCDEFGH"[: plan.cpu] + "c"
    layers = [
        names[layer] if layer == experts else names[layer].lower()
        for layer, experts in zip(plan.layers, plan.experts, strict=True)
    ]
    return "".join(layers) + " " + names[plan.output]


@pytest.mark.parametrize(
    ("free", "layout"),
    [
        ((), "cccc c"),
        ((0,), "cccc c"),
        ((74,), "cccc c"),
        ((75,), "cccc A"),
        ((184,), "cccc A"),
        ((185,), "cccA A"),
        ((514,), "cAAA A"),
        ((515,), "AAAA A"),
        ((515, 600), "BBBB B"),  # the one with most room, alone
        ((300, 300), "BBAA A"),
        ((240, 300), "AABB B"),
        ((130, 130), "cccB A"),
        ((150, 150, 150), "ccCB A"),
    ],
    ids=str,
)
def test_as_much_as_fits(free: tuple[int, ...], layout: str) -> None:
    assert shown(plan_placement(DENSE, rooms(*free), PlacementOptions())) == layout


@pytest.mark.parametrize(
    ("free", "options", "layout"),
    [
        ((4515,), {}, "AAAA A"),
        ((4514,), {}, "aAAA A"),
        ((2515,), {}, "aaAA A"),
        ((1514,), {}, "aaaa A"),
        ((514,), {}, "caaa A"),
        ((4515,), {"cpu_experts": 3}, "aaaA A"),
        ((4515,), {"cpu_experts": 9}, "aaaa A"),
        ((4515,), {"cpu_experts": 0}, "AAAA A"),
        ((4514,), {"cpu_experts": 0}, "cAAA A"),
        ((4515,), {"gpu_layers": 3}, "ccAA A"),
        ((1400,), {"gpu_layers": 3}, "ccaA A"),
        ((1600, 3000), {}, "aABB B"),
        ((3000, 1600), {"main_gpu": 1}, "aAAB B"),
    ],
    ids=str,
)
def test_experts_stay_on_the_cpu_before_layers(free: tuple[int, ...], options: dict[str, int], layout: str) -> None:
    assert shown(plan_placement(MIXTURE, rooms(*free), PlacementOptions(**options))) == layout


sizes = st.integers(0, 200)


@st.composite
def models(draw: st.DrawFn) -> ModelSizes:
    """Models of all layers alike, of layers that differ, dense ones, mixtures, and mixtures with dense layers."""
    kinds = draw(st.lists(st.builds(LayerSizes, st.integers(1, 200), st.sampled_from([0, 0, 700]), sizes), min_size=1,
                          max_size=3))  # fmt: skip
    n_layers = draw(st.integers(1, 24))
    return ModelSizes(
        layers=tuple(kinds[i % len(kinds)] for i in range(n_layers)),
        output=draw(sizes), tied=draw(st.booleans()), vision=draw(st.sampled_from([0, 150])), input=draw(sizes),
        graph=draw(sizes), output_graph=draw(sizes), vision_graph=draw(sizes), offload=draw(sizes),
    )  # fmt: skip


machines = st.lists(st.integers(0, 6000), min_size=1, max_size=4).flatmap(
    lambda free: st.sampled_from([0, 30]).map(lambda reserve: rooms(*free, reserve=reserve))
)


def recounted(sizes: ModelSizes, plan: PlacementPlan, number: int) -> tuple[int, int, int]:
    """Weights, cache and graph of a GPU of a plan, counted part by part."""
    here = [i for i, device in enumerate(plan.layers) if device == number]
    weights = sum(sizes.layers[i].weights for i in here) + (sizes.output if plan.output == number else 0)
    weights += sum(layer.experts for layer, gpu in zip(sizes.layers, plan.experts, strict=True) if gpu == number)
    weights += sizes.vision if plan.vision == number else 0
    graph = sizes.graph if here or plan.output == number else 0
    graph += sizes.output_graph if plan.output == number else 0
    graph += sizes.vision_graph if plan.vision == number and sizes.vision else 0
    return weights, sum(sizes.layers[i].cache for i in here), graph


def check_sums(sizes: ModelSizes, plan: PlacementPlan) -> None:
    """What a plan says of its devices is what its assignment adds up to, and no part is missing."""
    for number, device in enumerate(plan.devices[:-1]):
        weights, cache, graph = recounted(sizes, plan, number)
        assert (device.weights, device.cache) == (weights, cache)
        copies = device.graph - graph  # of the CPU's weights, on the first GPU
        assert copies == 0 or (copies == sizes.offload and number == plan.order[0])
        assert device.layers == tuple(i for i, gpu in enumerate(plan.layers) if gpu == number)
        assert (number in plan.order) == (device.taken > 0 or bool(device.layers) or device.output)
    if plan.order and (plan.cpu in plan.layers or plan.cpu_experts):
        first = plan.order[0]
        assert plan.devices[first].graph - recounted(sizes, plan, first)[2] == sizes.offload
    everything = sum(layer.weights + layer.experts for layer in sizes.layers) + sizes.vision + sizes.input
    output = 0 if sizes.tied and plan.output == plan.cpu else sizes.output
    assert sum(device.weights for device in plan.devices) == everything + output
    assert sum(device.cache for device in plan.devices) == sum(layer.cache for layer in sizes.layers)
    for layer, experts, layer_sizes in zip(plan.layers, plan.experts, sizes.layers, strict=True):
        assert experts == layer or (experts == plan.cpu and layer_sizes.experts)


def room_left(sizes: ModelSizes, plan: PlacementPlan, room: Room, number: int) -> int:
    """Bytes for a further layer, after what a GPU takes with its first one; it may have the vision tower alone."""
    begun = number in (*plan.layers, plan.output)
    left = room.usable - plan.devices[number].taken - (0 if begun else sizes.graph)
    return left if plan.order else left - sizes.offload


@settings(derandomize=True, max_examples=scaled(500, quick=100))
@given(models(), machines, st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.integers(0, 30)))
def test_plans_of_their_own_fill_devices_and_overfill_none(
    sizes: ModelSizes, rooms: list[Room], main_gpu: int | None, cpu_experts: int | None
) -> None:
    main_gpu = None if main_gpu is None or main_gpu >= len(rooms) else main_gpu
    plan = plan_placement(sizes, rooms, PlacementOptions(main_gpu=main_gpu, cpu_experts=cpu_experts))
    check_sums(sizes, plan)
    assert not plan.overfull
    for number, room in enumerate(rooms):
        assert plan.devices[number].taken <= (room.usable if number in plan.order else 0)
        left = room_left(sizes, plan, room, number)
        for i, layer in enumerate(sizes.layers):
            if plan.layers[i] == plan.cpu:
                experts = layer.experts if cpu_experts is not None and cpu_experts <= i else 0
                assert layer.weights + layer.cache + experts > left, f"layer {i}"
            elif plan.layers[i] == number and plan.experts[i] == plan.cpu and cpu_experts is None:
                assert layer.experts > room.usable - plan.devices[number].taken, f"experts of layer {i}"
        if plan.output == plan.cpu:
            assert sizes.output + sizes.output_graph > left
        if sizes.vision and plan.vision == plan.cpu:
            copies = 0 if plan.order else sizes.offload
            assert sizes.vision + sizes.vision_graph + copies > room.usable - plan.devices[number].taken
    if cpu_experts is not None:
        assert all(plan.experts[i] == plan.cpu for i in range(min(cpu_experts, len(sizes.layers)))
                   if sizes.layers[i].experts)  # fmt: skip
        assert all(plan.experts[i] == plan.layers[i] for i in range(cpu_experts, len(sizes.layers)))


@settings(derandomize=True, max_examples=scaled(500, quick=100))
@given(models(), machines)
def test_experts_cost_no_layer_its_place(sizes: ModelSizes, rooms: list[Room]) -> None:
    """As many layers are on GPUs as if there were no experts, but for the gaps that first layers leave."""
    sizes = replace(sizes, offload=0, layers=tuple(replace(sizes.layers[0], experts=700) for _ in sizes.layers))
    without = replace(sizes, layers=tuple(replace(layer, experts=0) for layer in sizes.layers))
    plan, bare = (plan_placement(given, rooms, PlacementOptions()) for given in (sizes, without))
    assert plan.gpu_layers == bare.gpu_layers
    if plan.cpu_experts and plan.gpu_layers == len(sizes.layers) + 1:
        fewer = plan_placement(sizes, rooms, PlacementOptions(cpu_experts=plan.cpu_experts - 1))
        assert fewer.gpu_layers <= len(sizes.layers), "fewer experts on the CPU leave no room for a layer"


@settings(derandomize=True, max_examples=scaled(500, quick=100))
@given(models(), machines, st.integers(0, 30))
def test_gpu_layers_are_those_that_were_asked_for(sizes: ModelSizes, rooms: list[Room], gpu_layers: int) -> None:
    plan = plan_placement(sizes, rooms, PlacementOptions(gpu_layers=gpu_layers))
    check_sums(sizes, plan)
    n_items = len(sizes.layers) + 1
    items = (*plan.layers, plan.output)
    on_cpu = n_items - min(gpu_layers, n_items)
    assert all(number == plan.cpu for number in items[:on_cpu])
    assert all(number != plan.cpu for number in items[on_cpu:])
    free = plan_placement(sizes, rooms, PlacementOptions())
    if min(gpu_layers, n_items) == n_items == free.gpu_layers:
        assert plan == free
    if plan.overfull:
        assert free.gpu_layers < n_items, "a model that fits whole is not refused"
        least = [layer.weights + layer.cache for layer in sizes.layers[max(0, on_cpu) :]]
        assert max(room.usable for room in rooms) < sum(least) + sizes.output + sizes.graph + sizes.output_graph + (
            sizes.offload
        ), "what fits on one GPU is not refused"


@settings(derandomize=True, max_examples=scaled(500, quick=100))
@given(models(), machines, st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=4))
def test_shares_are_kept(sizes: ModelSizes, rooms: list[Room], shares: list[float]) -> None:
    shares = shares[: len(rooms)]
    if not sum(shares):
        return
    plan = plan_placement(sizes, rooms, PlacementOptions(tensor_split=shares))
    check_sums(sizes, plan)
    assert not plan.overfull
    on_gpus = [number for number in (*plan.layers, plan.output) if number != plan.cpu]
    assert on_gpus == sorted(on_gpus)
    assert [*plan.layers, plan.output][len(plan.layers) + 1 - len(on_gpus) :] == on_gpus
    for number, share in enumerate(shares):
        assert abs(on_gpus.count(number) - len(on_gpus) * share / sum(shares)) <= 1
    if plan.output == plan.cpu or plan.cpu in plan.layers:
        more = PlacementOptions(tensor_split=shares, gpu_layers=len(on_gpus) + 1)
        demanded = plan_placement(sizes, rooms, more).devices[:-1]
        assert any(device.taken > device.usable for device in demanded), "one layer more does not fit"


def test_what_does_not_fit_is_planned_as_asked() -> None:
    plan = plan_placement(DENSE, rooms(100, 200), PlacementOptions(gpu_layers=5))
    assert plan.cpu not in plan.layers
    assert {device.name for device in plan.overfull} <= {"GPU0", "GPU1"}
    assert sum(device.overfull for device in plan.overfull) >= 515 - 300


def test_several_gpus_are_filled_alike() -> None:
    many = replace(DENSE, layers=DENSE.layers * 10)
    plan = plan_placement(many, rooms(4000, 4000), PlacementOptions())
    assert plan.cpu not in plan.layers
    first, second = (device.taken for device in plan.devices[:2])
    assert abs(first - second) <= 300


@pytest.mark.parametrize(
    ("options", "message"),
    [({"main_gpu": 2}, "main_gpu 2 does not exist; GPUs: GPU0, GPU1"), ({"tensor_split": (1, 1, 1)}, "3 shares for 2")],
    ids=str,
)
def test_gpus_that_do_not_exist(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_placement(DENSE, rooms(100, 200), PlacementOptions(**options))  # type: ignore[arg-type]
