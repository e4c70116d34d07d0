"""Plans what lies where: sizes of a model and of devices in, an assignment out. Pure: no device is touched."""

from __future__ import annotations

from collections.abc import Sequence

from ollama_engine.ml.device.placement import check_numbers
from ollama_engine.ml.device.placement_plan import ModelSizes, PlacementOptions, PlacementPlan, PlannedDevice, Room

__all__ = ["plan_placement"]

STEPS = 32
"""In how many steps the free memory of several devices is tried, to fill them alike."""


def plan_placement(sizes: ModelSizes, rooms: Sequence[Room], options: PlacementOptions) -> PlacementPlan:
    """As much of the model on GPUs as fits, and what the options demand even where it does not fit.

    Where everything fits, the plan uses the fewest GPUs, and fills these alike. Where it does not: experts of the first
    layers stay on the CPU; if that is not enough, the experts of all layers and the first layers. Then gaps are filled,
    so no layer and no layer's experts on the CPU would fit into what is left of a GPU (unless an option puts them
    there). The vision tower comes last.

    Raises ConfigError for a `main_gpu` or a share of `tensor_split` without a GPU.
    """
    _check(rooms, options)
    return _Planner(sizes, rooms, options).plan()


def _check(rooms: Sequence[Room], options: PlacementOptions) -> None:
    if not rooms:
        return  # `choose_devices` refuses what needs a GPU, and knows those that the caller wants to leave unused
    check_numbers([room.name for room in rooms], options.main_gpu, options.tensor_split)


class _Filling:
    """Where each item of the chain is, and the bytes of each GPU, while a plan is made."""

    def __init__(self, sizes: ModelSizes, limits: Sequence[int], cpu_experts: int, partial: bool) -> None:
        self.sizes = sizes
        self.limits = limits
        self.cpu = len(limits)
        self.n_layers = len(sizes.layers)
        self.items = [self.cpu] * (self.n_layers + 1)
        self.experts = [self.cpu] * self.n_layers
        self.begun: list[int] = []
        """GPUs that hold something, in the order in which they got it. ggml copies weights of the CPU to the first."""
        self.partial = partial
        """Whether weights of layers stay on the CPU."""
        self._cpu_experts = cpu_experts
        self._taken = [0] * len(limits)

    def left(self, gpu: int) -> int:
        """Bytes that this GPU still has; negative where it is overfull."""
        return self.limits[gpu] - self._taken[gpu]

    def _cost(self, gpu: int, item: int) -> int:
        """Bytes that an item takes on this GPU, and what the first item takes besides."""
        begin = (0 if gpu in self.items else self.sizes.graph) + self._copies()
        if item == self.n_layers:
            return begin + self.sizes.output + self.sizes.output_graph
        layer = self.sizes.layers[item]
        return begin + layer.weights + layer.cache + (layer.experts if item >= self._cpu_experts else 0)

    def _copies(self) -> int:
        """Bytes for copies of the CPU's weights on a GPU that is begun next."""
        return self.sizes.offload if self.partial and not self.begun else 0

    def fits(self, gpu: int, item: int) -> bool:
        return self._cost(gpu, item) <= self.left(gpu)

    def put(self, gpu: int, item: int) -> None:
        self._taken[gpu] += self._cost(gpu, item)
        self.items[item] = gpu
        if self._cpu_experts <= item < self.n_layers:
            self.experts[item] = gpu
        if gpu not in self.begun:
            self.begun.append(gpu)

    def fill(self, order: Sequence[int], gpu_items: int) -> bool:
        """Put the last `gpu_items` on GPUs, a run of them on each; whether all of them fit."""
        place = 0
        for item in range(self.n_layers, self.n_layers - gpu_items, -1):
            while place < len(order) and not self.fits(order[place], item):
                place += 1
            if place == len(order):
                return False
            self.put(order[place], item)
        return True

    def fill_gaps(self, order: Sequence[int], gpu_items: int, *, force: bool = False) -> bool:
        """Put those of the last `gpu_items` on GPUs that still fit anywhere; whether none is left.

        With `force` the GPU with most room takes those that do not fit.
        """
        begun = len(self.begun)
        complete = self._fill_once(order, gpu_items, force)
        while not complete and len(self.begun) > begun:  # the first GPU took the copies: others have room for more
            begun = len(self.begun)
            complete = self._fill_once(order, gpu_items, force)
        return complete

    def _fill_once(self, order: Sequence[int], gpu_items: int, force: bool) -> bool:
        complete = True
        for item in range(self.n_layers, self.n_layers - gpu_items, -1):
            if self.items[item] != self.cpu:
                continue
            gpu = next((gpu for gpu in order if self.fits(gpu, item)), None)
            complete = complete and gpu is not None
            if gpu is None and force:
                gpu = max(order, key=self.left)
            if gpu is not None:
                self.put(gpu, item)
        return complete

    def fill_gaps_with_experts(self) -> None:
        """Put experts on their layer's GPU where they still fit, from the last layer on."""
        for item in range(self.n_layers - 1, -1, -1):
            gpu, nbytes = self.items[item], self.sizes.layers[item].experts
            if gpu != self.cpu == self.experts[item] and nbytes <= self.left(gpu):
                self._taken[gpu] += nbytes
                self.experts[item] = gpu

    def place_vision(self, order: Sequence[int], main: int | None) -> int:
        """The GPU for the vision tower: the main one, or that with most room, used ones before others; else the CPU."""
        needed = self.sizes.vision + self.sizes.vision_graph + self._copies()
        rooms = [gpu for gpu in order if needed <= self.left(gpu)]
        if not self.sizes.vision or not rooms:
            return self.cpu
        gpu = max(rooms, key=lambda gpu: (gpu == main, gpu in self.begun, self.left(gpu)))
        self._taken[gpu] += needed
        if gpu not in self.begun:
            self.begun.append(gpu)
        return gpu


class _Planner:
    def __init__(self, sizes: ModelSizes, rooms: Sequence[Room], options: PlacementOptions) -> None:
        self._sizes = sizes
        self._rooms = rooms
        self._options = options
        self._limits = [room.usable for room in rooms]
        self._n_layers = len(sizes.layers)
        self._n_items = self._n_layers + 1 if sizes.layers or sizes.output else 0
        experts = sum(1 for layer in sizes.layers if layer.experts)
        self._most_experts = self._n_layers if experts else 0
        self._fewest_experts = 0
        if options.cpu_experts is not None:
            self._fewest_experts = self._most_experts = min(options.cpu_experts, self._most_experts)
        self._order = self._gpu_order()

    def _gpu_order(self) -> list[int]:
        """GPUs in the order in which they are filled: the main one, then the one with most room."""
        numbers = range(len(self._rooms))
        if self._options.tensor_split is not None:
            return [gpu for gpu, share in zip(numbers, self._options.tensor_split, strict=False) if share > 0]
        main = self._options.main_gpu
        return sorted(numbers, key=lambda gpu: (gpu != main, -self._limits[gpu], gpu))

    def plan(self) -> PlacementPlan:
        gpu_items = self._options.gpu_layers
        if not self._rooms or gpu_items == 0:
            return self._result(self._new(self._most_experts, partial=True), place_vision=False)
        if gpu_items is not None:
            gpu_items = min(gpu_items, self._n_items)
            filling = self._fitted(gpu_items) or self._demanded(gpu_items)
        else:
            filling = self._fitted(self._n_items) or self._partial()
        self._fill_gaps_with_experts(filling)
        return self._result(filling, place_vision=True)

    def _fill_gaps_with_experts(self, filling: _Filling) -> None:
        if self._options.cpu_experts is None:
            filling.fill_gaps_with_experts()

    def _fitted(self, gpu_items: int) -> _Filling | None:
        """The last `gpu_items` on GPUs with the fewest experts on the CPU; None where they do not fit."""
        low, high = self._fewest_experts, self._most_experts
        best = self._attempt(gpu_items, low)
        if best is not None or low == high:
            return best
        while low < high:  # the more experts on the CPU, the less the GPUs hold
            middle = (low + high) // 2
            filling = self._attempt(gpu_items, middle)
            best, low, high = (best, middle + 1, high) if filling is None else (filling, low, middle)
        return best or self._attempt(gpu_items, high)

    def _demanded(self, gpu_items: int) -> _Filling:
        """The last `gpu_items` on GPUs, where no plan would put them: in the reserve, or where nothing is left."""
        self._limits = [room.free for room in self._rooms]
        filling = self._fitted(gpu_items) or self._attempt(gpu_items, self._most_experts, force=True)
        assert filling is not None, "force fills in any case"
        return filling

    def _partial(self) -> _Filling:
        """As many items on GPUs as fit."""
        if self._options.tensor_split is None:
            filling = self._new(self._most_experts, partial=True)
            filling.fill(self._order, self._n_items)
            filling.fill_gaps(self._order, self._n_items)
            return filling
        counts = range(self._n_items, -1, -1)
        fitting = (self._attempt(gpu_items, self._most_experts) for gpu_items in counts)
        return next(filling for filling in fitting if filling is not None)

    def _attempt(self, gpu_items: int, cpu_experts: int, *, force: bool = False) -> _Filling | None:
        """The last `gpu_items` on GPUs; None where they do not fit, unless `force`."""
        partial = gpu_items < self._n_items or cpu_experts > 0
        if self._options.tensor_split is not None:
            filling = self._new(cpu_experts, partial)
            self._share_out(filling, gpu_items)
            return filling if force or all(filling.left(gpu) >= 0 for gpu in filling.begun) else None
        for n_gpus in range(1, len(self._order) + 1):
            filling = self._new(cpu_experts, partial)
            if filling.fill(self._order[:n_gpus], gpu_items):
                return self._evened(filling, gpu_items, cpu_experts, partial)
        return filling if filling.fill_gaps(self._order, gpu_items, force=force) or force else None

    def _new(self, cpu_experts: int, partial: bool, limits: Sequence[int] | None = None) -> _Filling:
        return _Filling(self._sizes, self._limits if limits is None else limits, cpu_experts, partial)

    def _evened(self, fitting: _Filling, gpu_items: int, cpu_experts: int, partial: bool) -> _Filling:
        """The same with GPUs filled alike, so that none of several is full to the brim."""
        used = fitting.begun
        for step in range(1, STEPS if len(used) > 1 else 0):
            filling = self._new(cpu_experts, partial, [limit * step // STEPS for limit in self._limits])
            if filling.fill(used, gpu_items) and filling.begun == used:
                filling.limits = self._limits
                return filling
        return fitting

    def _share_out(self, filling: _Filling, gpu_items: int) -> None:
        """Put the last `gpu_items` on GPUs, in device order, as many on each as its share of them.

        The main GPU, where there is one, gets the output beyond its share.
        """
        shares = [float(share) for share in self._options.tensor_split or ()]
        bounds = [sum(shares[: gpu + 1]) / sum(shares) for gpu in range(len(shares))]
        main, first, n_shared = self._options.main_gpu, self._n_items - gpu_items, gpu_items
        if main is not None and gpu_items:
            filling.put(main, self._n_layers)  # first: small operations without a place of their own go there, too
            n_shared -= 1
        for i in range(n_shared):
            position = (i + 0.5) / n_shared
            filling.put(next(g for g, bound in enumerate(bounds) if position <= bound or g == self._order[-1]),
                        first + i)  # fmt: skip

    def _result(self, filling: _Filling, *, place_vision: bool) -> PlacementPlan:
        main = self._options.main_gpu
        order = [*self._order, *([main] if main is not None and main not in self._order else [])]
        vision = filling.place_vision(order, main) if place_vision else filling.cpu
        if vision != filling.cpu and self._options.gpu_layers is None and self._options.tensor_split is None:
            filling.fill_gaps(self._order, self._n_items)  # the tower may have taken the copies
            self._fill_gaps_with_experts(filling)
        numbers = range(len(self._rooms) + 1)
        experts = tuple(
            gpu if layer.experts else filling.items[number]
            for number, (gpu, layer) in enumerate(zip(filling.experts, self._sizes.layers, strict=True))
        )
        devices = tuple(self._device(filling, vision, number) for number in numbers)
        return PlacementPlan(tuple(filling.items[:-1]), experts, filling.items[-1], vision, devices,
                             tuple(filling.begun))  # fmt: skip

    def _device(self, filling: _Filling, vision: int, number: int) -> PlannedDevice:
        sizes, is_cpu = self._sizes, number == filling.cpu
        layers = tuple(i for i in range(self._n_layers) if filling.items[i] == number)
        output = filling.items[-1] == number and self._n_items > 0
        weights = sum(sizes.layers[i].weights for i in layers)
        weights += sum(sizes.layers[i].experts for i in range(self._n_layers) if filling.experts[i] == number)
        weights += (sizes.vision if vision == number else 0) + (sizes.input if is_cpu else 0)
        weights += sizes.output if output and not (is_cpu and sizes.tied) else 0
        graph = sizes.graph if layers or output or is_cpu else 0
        graph += sizes.offload if filling.partial and number in filling.begun[:1] else 0
        graph += (sizes.output_graph if output else 0) + (sizes.vision_graph if vision == number else 0)
        room = Room("CPU", 0) if is_cpu else self._rooms[number]
        return PlannedDevice(
            name=room.name, free=None if is_cpu else room.free, reserve=room.reserve, weights=weights,
            cache=sum(sizes.layers[i].cache for i in layers), graph=graph, layers=layers, output=output,
            vision=vision == number and sizes.vision > 0,
        )  # fmt: skip
