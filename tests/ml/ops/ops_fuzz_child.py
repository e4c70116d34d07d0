"""Calls operations at random until enough were called, and prints what happened as JSON.

Run by test_ops_fuzz.py in a process of its own: python -m tests.ml.ops.ops_fuzz_child SEED CALLS LOGFILE
Each case is written to LOGFILE before it is run, so that the last lines there name what ended the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import operator
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from ollama_engine.errors import EngineError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from tests.ml.ops import fuzz_calls as calls
from tests.ml.ops import fuzz_image
from tests.ml.ops.fuzz_expect import EXPECT, Expected
from tests.ml.ops.fuzz_values import UNIT, Bank, Call, Env, Value, dequantize, show

CLEAN = (EngineError, TypeError, ValueError, OverflowError)
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
SOUND = (*calls.SOUND, *fuzz_image.SOUND)
HOSTILE = 0.27
CALLS_PER_GRAPH = 14
LARGEST = 1 << 24
"""Bytes of a result that is computed; an exchanged dimension may ask for terabytes."""


class MismatchError(Exception):
    """The engine and numpy disagree."""


WRITING = ("copy", "set_rows", "causal_conv", "gated_delta_net", "ssm_scan")
"""Operations that write into an operand."""


class Fuzz:
    """The state of one run."""

    def __init__(self, seed: int, log: TextIO) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.log = log
        # Two threads wait for each other after every operation, which takes long on a busy machine.
        self.single = Backend(BackendParams(threads=1), max_nodes=1024)
        self.double = Backend(BackendParams(threads=2), max_nodes=1024)
        self.backend = self.single
        self.decoder = Backend(BackendParams(threads=1), max_nodes=64)
        self.bank = Bank(self.decoder, seed)
        self.called: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.computed: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()
        self.constructors = 0
        self.graphs = 0
        self.previous: list[Context] = []
        self.owners: list[Any] = []
        self.lasting: dict[Backend, list[Any]] = {}

    def note(self, text: str) -> None:
        self.log.write(text + "\n")
        self.log.flush()

    def run(self, n: int) -> None:
        while sum(self.called.values()) < n:
            self.log.seek(0)
            self.log.truncate()
            self.note(f"graph {self.graphs}")
            self.one_graph()
            self.graphs += 1
            if self.graphs % 7 == 0:
                self.bad_rows()

    # -- one graph -----------------------------------------------------------------------------------------------------

    def one_graph(self) -> None:
        self.backend = self.double if self.graphs % 8 == 0 else self.single
        ctx = Context(self.backend, max_nodes=self.rng.choice((None, None, 300, 40)))
        env = Env(self.backend, self.bank, self.rng, self.numbers, ctx)
        env.oddities = self.oddities()
        results: list[tuple[Call, Value, Expected]] = []
        for _ in range(CALLS_PER_GRAPH):
            result = self.one_call(env)
            if result is not None:
                results.append(result)
            if self.rng.random() < 0.3:
                self.odd_constructor(env)
        self.compute(env, results)
        self.finish(env)

    def finish(self, env: Env) -> None:
        """Close in some order, or leave it to the garbage collector."""
        self.constructors += env.calls
        for storage in env.storages:
            if self.rng.random() < 0.5:
                storage.close()
        if self.rng.random() < 0.5:
            env.ctx.close()
        elif self.rng.random() < 0.5:
            self.previous = [*self.previous[-2:], env.ctx]

    def one_call(self, env: Env) -> tuple[Call, Value, Expected] | None:
        try:
            call = self.rng.choice(SOUND)(env)
        except EngineError as error:
            if "max_nodes" in str(error):  # a small context is full
                return None
            raise
        hostile = self.rng.random() < HOSTILE
        if hostile:
            call = calls.spoil(env, call)
        self.note(str(call))
        self.called[call.name] += 1
        try:
            tensor = self.invoke(call)
        except CLEAN as error:
            self.refused[call.name] += 1
            if not hostile and not self.may_refuse(call, str(error)):
                raise MismatchError(f"refused: {call}: {error!r}") from error
            return None
        if not isinstance(tensor, Tensor):
            raise MismatchError(f"{call} gave {tensor!r}")
        if any(isinstance(a, Tensor) for a in (*call.args, *call.kwargs.values())):
            return None  # an oddity was accepted; there are no values to compare with
        if tensor.nbytes > LARGEST:
            return None
        return self.keep(env, call, tensor, hostile)

    @staticmethod
    def invoke(call: Call) -> Any:
        args = [a.tensor if isinstance(a, Value) else a for a in call.args]
        kwargs = {k: v.tensor if isinstance(v, Value) else v for k, v in call.kwargs.items()}
        return (OPERATORS.get(call.name) or getattr(ops, call.name))(*args, **kwargs)

    @staticmethod
    def may_refuse(call: Call, message: str) -> bool:
        """Sound calls may be refused for strided operands, full contexts, and products of stored tensors alone; also
        experts of a type that has no kernel."""
        if call.name == "mul_mat_id_small_batch" and call.args[0].dtype not in calls.SMALL_BATCH_QUANTIZED:
            return any(part in message for part in ("the weight must be", "max_nodes", "no operand belongs"))
        return any(part in message for part in ("contiguous", "max_nodes", "transposed", "no operand belongs"))

    def keep(self, env: Env, call: Call, tensor: Tensor, hostile: bool) -> tuple[Call, Value, Expected] | None:
        operands = tuple(a for a in (*call.args, *call.kwargs.values()) if isinstance(a, Value))
        try:
            with np.errstate(all="ignore"):
                expected = (EXPECT.get(call.name) or fuzz_image.EXPECT[call.name])(*call.args, **call.kwargs)
        except IndexError:  # row numbers of another table; Context.compute finds them
            env.doomed = True
            return None
        expected.wild = expected.wild or any(v.wild for v in operands)
        env.tainted = env.tainted or (hostile and call.name in WRITING)
        shape = tuple(expected.array.shape[::-1])
        if (*tensor.shape, 1, 1, 1)[:4] != shape or tensor.dtype != expected.dtype:
            raise MismatchError(f"{call} has type {tensor.dtype}{tensor.shape}, expected {expected.dtype}{shape}")
        worst = float(np.max(expected.tol))
        value = Value(tensor, expected.array, expected.dtype, worst, expected.wild, operands)
        calm = np.isfinite(expected.array).all() and worst < 1e-3 and np.abs(expected.array).max() < 100
        if call.name not in ("copy", "set_rows", "argsort", "top_k", "best_k") and (calm or expected.wild):
            env.pool.append(value)
        return call, value, expected

    # -- computing -----------------------------------------------------------------------------------------------------

    def compute(self, env: Env, results: list[tuple[Call, Value, Expected]]) -> None:
        wanted = [r for r in results if self.rng.random() < 0.7 or r[0].name in ("copy", "set_rows")]
        shown: list[tuple[Call, Value, Expected, Tensor]] = []
        for call, value, expected in wanted:
            out = self.readable(value)
            if out is not None:
                shown.append((call, value, expected, out))
        if not shown:
            return
        self.note("forward")
        if self.rng.random() < 0.5:
            env.ctx.forward(*(s[3] for s in shown))
        else:
            for s in shown:
                env.ctx.expand(s[1].tensor)
                env.ctx.forward(s[3])
        if not env.ctx.n_nodes:
            return
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            self.plan(env)
            self.feed(env)
            self.note("compute")
            if env.doomed:
                _must_not_crash(env.ctx.compute)
                return
            env.ctx.compute()
            if env.tainted:
                return
            for call, value, expected, out in shown:
                self.compare(call, value, expected, out)
                self.compared[call.name] += not expected.wild
        in_graph = self.ancestors([s[1] for s in shown])
        for call, value, _ in results:
            self.computed[call.name] += value in in_graph

    def readable(self, value: Value) -> Tensor | None:
        """An output to read the value from, if there can be one."""
        try:
            if value.tensor.contiguous:
                return value.tensor
            return ops.cont(value.tensor) if value.dtype in ("f32", "f16", "bf16", "i32") else None
        except EngineError:
            return None  # the context is full

    @staticmethod
    def ancestors(values: list[Value]) -> set[Value]:
        seen: set[Value] = set()
        todo = list(values)
        while todo:
            value = todo.pop()
            if value not in seen:
                seen.add(value)
                todo.extend(value.parents)
        return seen

    def plan(self, env: Env) -> None:
        self.note("plan")
        if self.rng.random() < 0.1:
            env.ctx.measure()
        if self.rng.random() < 0.1:
            env.ctx.reserve()
        if self.rng.random() < 0.2 and self.previous:
            other = self.rng.choice(self.previous)
            try:
                other.alloc()
            except EngineError as error:
                self.note(f"other context: {error}")
        env.ctx.alloc()

    def feed(self, env: Env) -> None:
        self.note("feed")
        for value in env.inputs:
            try:
                value.tensor.set_bytes(value.feed)
            except EngineError as error:
                if "no memory" not in str(error):  # an input that is not part of the graph has none
                    raise

    def compare(self, call: Call, value: Value, expected: Expected, out: Tensor) -> None:
        actual = self.read(value, out)
        if expected.order_of is not None:
            if not expected.wild:
                _check_order(call, actual.astype(np.int64), expected)
            return
        if expected.wild:
            return
        with np.errstate(all="ignore"):
            error = np.abs(actual.astype(np.float64) - expected.array)
            good = (error <= expected.tol) | (np.isnan(actual) & np.isnan(expected.array)) | (actual == expected.array)
        if not good.all():
            place = tuple(np.argwhere(~good)[0])
            raise MismatchError(
                f"{call}: {(~good).sum()} of {good.size} wrong, first at {place[::-1]}: got {actual[place]}, "
                f"expected {expected.array[place]} +- {np.broadcast_to(expected.tol, good.shape)[place]}"
            )

    def read(self, value: Value, out: Tensor) -> np.ndarray:
        raw = out.numpy()
        if value.dtype == "bf16":
            raw = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif value.dtype not in UNIT:
            raw = dequantize(self.decoder, value.dtype, raw)
        return raw.reshape(value.array.shape)

    # -- hostility -----------------------------------------------------------------------------------------------------

    def oddities(self) -> list[Any]:
        """Tensors that most operations must refuse: of other owners, closed, without memory, repacked, mapped, huge."""
        if self.backend not in self.lasting:
            self.lasting[self.backend] = self._lasting_oddities()
        return [odd for made in self.lasting.values() for odd in made]

    def _lasting_oddities(self) -> list[Any]:
        other = Context(self.backend, max_nodes=64)
        closed = Context(self.backend, max_nodes=64)
        gone = closed.zeros("f32", (4, 2))
        closed.close()
        empty = Storage(self.backend, 1)
        shut = Storage(self.backend, 1)
        lost = shut.add("t", "f32", (4,))
        shut.allocate(0)
        shut.close()
        repacked = Storage(self.backend, 1)
        tile = repacked.add("t", "q4_0", (32, 8))
        repacked.allocate_repacked()
        self.owners += [other, empty, repacked]
        bare = Tensor.__new__(Tensor)
        huge = [
            other.input("f32", (2**31 - 1,)),
            other.input("f32", (1 << 20, 1 << 19)),
            other.input("i32", (1, 1 << 30)),
        ]
        return [other.zeros("f32", (4, 2)), other.input("i32", (3,)), gone, empty.add("t", "f32", (4, 2)), lost, tile,
                bare, self._mapped(), *huge]  # fmt: skip

    def _mapped(self) -> Tensor:
        memory = mmap.mmap(-1, 4096)
        memory.write(bytes(4096))
        storage = Storage(self.backend, 1)
        tensor = storage.add("t", "f32", (4, 2))
        storage.map(memory, {"t": 0})
        self.owners.append(storage)
        return tensor

    def odd_constructor(self, env: Env) -> None:
        """One call of a constructor or a method with anything; it must return or raise cleanly."""
        rng, anything = self.rng, lambda: self.rng.choice(calls.EVIL)
        dtype = rng.choice((*calls.all_types(env), "nonsense", None, 3))
        shape = rng.choice(
            (env.dims(), env.dims(), (32, 2), (1 << 31, 1), (1 << 30, 1 << 10), (0,), (-1, 3), anything())
        )
        if isinstance(shape, int) and not isinstance(shape, bool):
            shape = min(shape, 1 << 12)  # gigabytes would really be taken
        tensor = rng.choice((*env.pool, *env.inputs)).tensor if env.pool and env.inputs else rng.choice(env.oddities)
        target = rng.choice((*env.inputs, *env.oddities))  # not a constant, whose values are known
        target = target.tensor if isinstance(target, Value) else target
        name, attempt = rng.choice((
            ("from_floats", lambda: env.ctx.from_floats(rng.choice((anything(), self.numbers.normal(0, 1, env.dims()))),
                                                        rng.choice((None, shape, anything())), dtype)),
            ("from_ints", lambda: env.ctx.from_ints(rng.choice((anything(), [1, 2, 3])), rng.choice((None, shape)),
                                                    dtype)),
            ("empty", lambda: env.ctx.empty(dtype, shape)),
            ("zeros", lambda: env.ctx.zeros(dtype, shape)),
            ("input", lambda: env.ctx.input(dtype, shape, anything()).named("never set")),
            ("view", lambda: ops.view(rng.choice((tensor, rng.choice(env.oddities))), shape, anything(), anything(),
                                      rng.choice((None, env.ctx)))),
            ("set", lambda: target.set(anything())),
            ("set_bytes", lambda: target.set_bytes(anything())),
            ("read_into", lambda: tensor.read_into(anything())),
            ("numpy", tensor.numpy),
            ("dim", lambda: (tensor.dim(anything()), tensor.stride(anything()))),
            ("named", lambda: tensor.named(anything())),
            ("forward", lambda: env.ctx.forward(rng.choice(env.oddities), anything())),
        ))  # fmt: skip
        self.note(f"odd {name} {dtype} {show(shape)}")
        self.constructors += 1
        try:
            attempt()
        except (*CLEAN, BufferError, AttributeError) as error:
            if isinstance(error, AttributeError) and "never" not in name and "NoneType" in str(error):
                raise MismatchError(f"{name}: {error!r}") from error

    def bad_rows(self) -> None:
        """Row numbers out of range are found before ggml looks at them."""
        rng = self.rng
        bad = rng.choice((-1, 5, 1 << 30, -(1 << 31)))
        index = [0, 4, bad, 1]
        rng.shuffle(index)
        with Context(self.backend, max_nodes=64) as ctx:
            x, i = ctx.input("f32", (32, 4)), ctx.input("i32", (2, 2))
            ids = i if rng.random() < 0.5 else ops.cont(ops.transpose(i))
            table = ctx.zeros(rng.choice(("f32", "q8_0", "f16")), (32, 5))
            experts = ctx.zeros("q8_0", (32, 3, 5))
            flat = ops.reshape(ids, 4)
            out = rng.choice((
                lambda: ops.get_rows(table, flat),
                lambda: ops.set_rows(table, x, flat),
                lambda: ops.mul_mat_id(experts, ops.reshape(x, 32, 2, 2), ids),
                lambda: ops.mul_mat_id_small_batch(experts, ops.reshape(x, 32, 2, 2), ids),
            ))()  # fmt: skip
            ctx.forward(out, ops.sqr(x))
            ctx.alloc()
            x.set(np.zeros((4, 32), dtype=np.float32))
            i.set(np.array(index, dtype=np.int32).reshape(2, 2))
            self.note(f"rows {index} into {out}")
            try:
                ctx.compute()
            except EngineError:
                return
        raise MismatchError(f"row {bad} of 5 was accepted for {out}")


def _must_not_crash(attempt: Callable[[], object]) -> None:
    with contextlib.suppress(CLEAN):
        attempt()


def _check_order(call: Call, places: np.ndarray, expected: Expected) -> None:
    assert expected.order_of is not None
    if places.min() < 0 or places.max() >= expected.order_of.shape[-1]:
        raise MismatchError(f"{call}: places {places.min()} to {places.max()}")
    values = np.take_along_axis(expected.order_of, places, axis=-1)
    if call.name == "best_k":
        values = np.sort(values, axis=-1)[..., ::-1]
    best = np.sort(expected.order_of, axis=-1)
    best = best[..., ::-1] if expected.descending else best
    if not np.allclose(values, best[..., : values.shape[-1]], rtol=0, atol=2 * float(np.max(expected.tol)) + 1e-30):
        raise MismatchError(f"{call}: not in order: {values}")
    if any(len(set(row)) != len(row) for row in places.reshape(-1, places.shape[-1])):
        raise MismatchError(f"{call}: a place twice: {places}")


def main(seed: int, n_calls: int, path: str) -> int:
    faulthandler.enable()
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as log:
        fuzz = Fuzz(seed, log)
        try:
            fuzz.run(n_calls)
        except BaseException:
            fuzz.note(traceback.format_exc())
            raise
    print(json.dumps({
        "called": fuzz.called, "refused": fuzz.refused, "computed": fuzz.computed, "compared": fuzz.compared,
        "constructors": fuzz.constructors, "graphs": fuzz.graphs,
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
