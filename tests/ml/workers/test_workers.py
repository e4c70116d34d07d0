"""Workers at the level of tensors: what crosses, what is refused, and what happens when the other end is wrong."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, DeviceError, DeviceLostError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.device.worker_address import WorkerAddress, read_address
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.workers import worker_client
from ollama_engine.ml.workers.relay_ports import PORTS
from ollama_engine.ml.workers.worker_client import WorkerClient
from ollama_engine.ml.workers.workers import Worker
from tests.support.waiting import eventually, join
from tests.support.workers import RunningWorker, running_worker

ROOT = Path(__file__).resolve().parents[3]
HELLO = bytes((*worker_client.PROTOCOL, 0, 0)) + bytes(24)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    with running_worker(tmp_path_factory.mktemp("worker")) as running:
        yield running


@pytest.fixture
def backend(worker: RunningWorker) -> Iterator[Backend]:
    with Backend(BackendParams(threads=1, devices=(worker.address,))) as made:
        yield made


# -- tensors -----------------------------------------------------------------------------------------------------------


def test_values_come_back(backend: Backend) -> None:
    values = np.random.default_rng(1).standard_normal((300, 700), dtype=np.float32)
    with Storage(backend, 2) as storage:
        large, small = storage.add("large", "f32", (700, 300)), storage.add("small", "f32", (3,))
        storage.allocate(0)
        np.testing.assert_array_equal(large.numpy(), 0)
        large.set(values)
        small.set(np.array([1, 2, 3], np.float32))
        np.testing.assert_array_equal(large.numpy(), values)
        np.testing.assert_array_equal(small.numpy(), [1, 2, 3])


def weight_there(storage: Storage, values: np.ndarray) -> Tensor:
    """A weight on the worker."""
    weight = storage.add("w", "f32", values.shape[::-1])
    storage.allocate(0)
    storage.mark_weights()
    weight.set(values)
    return weight


def test_a_product_is_computed_where_its_weight_lies(backend: Backend) -> None:
    rng = np.random.default_rng(2)
    w, x = rng.standard_normal((8, 64), dtype=np.float32), rng.standard_normal((3, 64), dtype=np.float32)
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = weight_there(storage, w)
        graphs = backend.workers[0].counts()["graphs"]
        given = ctx.input("f32", (64, 3))
        out = ops.mul_mat(weight, given)
        ctx.forward(out)
        ctx.alloc()
        given.set(x)
        ctx.compute()
        np.testing.assert_allclose(out.numpy(), x @ w.T, rtol=1e-5, atol=1e-5)
        assert backend.workers[0].counts()["graphs"] == graphs + 1


def test_the_same_graph_on_another_device(worker: RunningWorker, tmp_path: Path) -> None:
    """ggml would reuse the plan of the first graph, and give the second one's results memory of the first device."""
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    with running_worker(tmp_path) as other:
        params = BackendParams(threads=1, devices=(worker.address, other.address))
        with Backend(params) as backend, contextlib.ExitStack() as storages:
            sources = []
            for device in range(3):
                storage = storages.enter_context(Storage(backend, 1))
                sources.append(storage.add("source", "f32", (8, 4)))
                storage.allocate(device)
                sources[-1].set(values + device)
            for order in ((0, 1), (1, 0), (0, 0), (2, 0), (0, 2)):
                with Context(backend) as ctx:
                    views = [ops.view(sources[device], (8, 3), (32,), ctx=ctx) for device in order]
                    outs = [ops.cont(ops.transpose(view)) for view in views]
                    ctx.forward(*outs)
                    ctx.alloc()
                    ctx.compute()
                    for device, out in zip(order, outs, strict=True):
                        np.testing.assert_array_equal(out.numpy(), (values[:3] + device).T)


def test_our_own_operations_stay_here(backend: Backend) -> None:
    """They are functions of this process; a worker says that it can run everything, and would call their addresses."""
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal((64, 64), dtype=np.float32), rng.standard_normal((3, 64), dtype=np.float32)
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = weight_there(storage, w)
        given = ctx.input("f32", (64, 3))
        first = ops.mul_mat(weight, given)
        own = ops.gelu_exact(first)
        out = ops.mul_mat(weight, own)
        twin = ops.mul_mat(weight, ops.unary(first, "gelu_erf"))
        ctx.forward(out, twin)
        ctx.reserve()
        ctx.alloc()
        given.set(x)
        ctx.compute()
        np.testing.assert_allclose(out.numpy(), twin.numpy(), rtol=1e-4, atol=1e-4)
        assert not backend.workers[0].lost


@pytest.mark.parametrize("source", ["here", "there"])
@pytest.mark.parametrize(("op", "places"), [("set_rows", [2, 0]), ("copy", [1, 0, 1, 1])])
def test_results_are_changed_where_they_lie(backend: Backend, op: str, places: list[int], source: str) -> None:
    """An intermediate result that an operation changes in place, before a product on the worker.

    ggml's scheduler alone gives that operation to the worker, which then gets no address of what to change.
    """
    rng = np.random.default_rng(4)
    t, w, r = (rng.standard_normal((n, 64), dtype=np.float32) for n in (10, 8, 2))
    read = [7, 1, 9, 3]
    with Storage(backend, 1) as embeddings, Storage(backend, 1) as weights, Context(backend) as ctx:
        table, weight = embeddings.add("table", "f32", (64, 10)), weights.add("w", "f32", (64, 8))
        embeddings.allocate(1 if source == "here" else 0)
        weights.allocate(0)
        for storage, tensor, values in ((embeddings, table, t), (weights, weight, w)):
            storage.mark_weights()
            tensor.set(values)
        ids, rows, index = ctx.input("i32", (4,)), ctx.input("f32", (64, 2)), ctx.input("i32", (len(places),))
        x = ops.get_rows(table, ids)
        x = ops.set_rows(x, rows, index) if op == "set_rows" else ops.copy(ops.get_rows(rows, index), x)
        out = ops.mul_mat(weight, x)
        ctx.forward(out)
        ctx.alloc()
        for tensor, numbers in ((ids, read), (index, places)):
            tensor.set(np.array(numbers, np.int32))
        rows.set(r)
        ctx.compute()
        expected = t[read] if op == "set_rows" else r[places]
        if op == "set_rows":
            expected[places] = r
        np.testing.assert_allclose(out.numpy(), expected @ w.T, rtol=1e-5, atol=1e-5)


def test_a_lost_worker_is_told_by_every_call(tmp_path: Path) -> None:
    with running_worker(tmp_path) as own, Backend(BackendParams(threads=1, devices=(own.address,))) as backend:
        storage, second, ctx = Storage(backend, 1), Storage(backend, 1), Context(backend)
        weight = weight_there(storage, np.ones((8, 64), np.float32))
        given = ctx.input("f32", (64, 3))
        product = ops.mul_mat(weight, given)
        ctx.forward(product)
        ctx.alloc()
        given.set(np.ones((3, 64), np.float32))

        def computed() -> object:
            """A graph is sent and not waited for; the worker is missed when the result is read, at the latest."""
            ctx.compute()
            return product.numpy()

        own.kill()
        with pytest.raises(DeviceLostError, match=own.address):
            computed()
        with pytest.raises(DeviceLostError):
            weight.numpy()
        with pytest.raises(DeviceLostError):
            weight.set(np.ones((8, 64), np.float32))
        second.add("w", "f32", (64, 8))
        with pytest.raises(DeviceLostError):
            second.allocate(0)
        with pytest.raises(DeviceLostError):
            backend.check_devices()
        for each in (ctx, storage, second):
            each.close()
    assert backend.workers[0].lost


def test_a_silent_worker_is_lost(tmp_path: Path) -> None:
    with running_worker(tmp_path) as own:
        remote = Worker(read_address(own.address)[0], quiet=2.0)
        with own.stopped():
            assert not remote.lost
            with pytest.raises(DeviceLostError, match="does not answer any more"):
                remote.memory()
        remote.close()


def test_an_idle_worker_is_missed_at_once(tmp_path: Path) -> None:
    with running_worker(tmp_path) as own, Backend(BackendParams(threads=1, devices=(own.address,))) as backend:
        assert not backend.workers[0].lost
        own.kill()
        eventually(lambda: backend.workers[0].lost)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has this option")
def test_a_machine_that_is_gone_is_noticed(worker: RunningWorker) -> None:
    """Nothing tells of a machine without power, or of a cut line: the system has to ask, and to give up."""
    with WorkerClient(read_address(worker.address)[0]) as client, socket.socket(fileno=client.detach()) as found:
        seconds = [found.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                   for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")]  # fmt: skip
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert seconds[0] + seconds[1] * seconds[2] == worker_client.SILENT_SECONDS
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == worker_client.SILENT_SECONDS * 1000


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port", "device", "written"),
    [
        ("rpc://host", "host", 50052, None, "rpc://host:50052"),
        ("rpc://10.0.0.7:99", "10.0.0.7", 99, None, "rpc://10.0.0.7:99"),
        ("rpc://10.0.0.7:99/2", "10.0.0.7", 99, 2, "rpc://10.0.0.7:99"),
        ("rpc://[::1]:5/", "::1", 5, None, "rpc://[::1]:5"),
    ],
)
def test_addresses(text: str, host: str, port: int, device: int | None, written: str) -> None:
    assert read_address(text) == (WorkerAddress(host, port), device)
    assert str(WorkerAddress(host, port)) == written


@pytest.mark.parametrize("text", ["rpc://", "rpc://:1", "rpc://h:0", "rpc://h:65536", "rpc://h:1/x", "http://h:1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="rpc://HOST:PORT"):
        read_address(text)


# -- the other end -----------------------------------------------------------------------------------------------------


class Impostor:
    """Serves like a worker; `answer` gives what is sent for each request, None to close the connection."""

    def __init__(self, answer: Callable[[int, bytes], bytes | None]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = WorkerAddress("127.0.0.1", self._listener.getsockname()[1])
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="the impostor", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener has ended
            while True:
                self._connection = self._listener.accept()[0]
                with self._connection as connection, contextlib.suppress(ConnectionError):
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while head := stream.read(9):
                command, size = struct.unpack("<BQ", head)
                sent = self._answer(command, stream.read(size))
                if sent is None:
                    return
                connection.sendall(sent)

    def __enter__(self) -> Impostor:
        return self

    def __exit__(self, *exc: object) -> None:
        for end in (self._listener, self._connection):
            if end is not None:
                with contextlib.suppress(OSError):  # it has ended
                    end.shutdown(socket.SHUT_RDWR)  # `close` wakes no thread that waits for it
        join(self._thread)
        self._listener.close()


def sized(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def with_devices(*sizes: int) -> Callable[[int, bytes], bytes]:
    """A worker with devices that have so many bytes, which knows nothing else."""

    def answer(command: int, body: bytes) -> bytes:
        if command == 11:
            return sized(struct.pack("<QQ", *[sizes[struct.unpack("<I", body)[0]]] * 2))
        return sized({14: HELLO, 15: struct.pack("<I", len(sizes)), 1: struct.pack("<Q", 64), 2: bytes(8)}[command])

    return answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda *_: None, "no worker of this version: it closed the connection"),
        (lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n", "no worker of this version: it answered"),
        (lambda *_: sized(b"\x08\0\0\0" + bytes(24)), "version 8.0.0 of ggml's protocol"),
        (lambda c, _: sized(HELLO) if c == 14 else sized(bytes(4)), "has no devices"),
    ],
)
def test_what_is_no_worker(answer: Callable[[int, bytes], bytes | None], told: str) -> None:
    with Impostor(answer) as other, pytest.raises(DeviceError, match=told):
        Worker(other.address)


def test_what_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_client, "ANSWER_SECONDS", 0.2)
    with Impostor(lambda *_: b"") as other, pytest.raises(DeviceError, match="it is busy"):
        WorkerClient(other.address)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [(b"", "does not answer"), (None, "is gone"), (sized(b"12345"), "what ggml's protocol does not say")],
    ids=["silent", "gone", "wrong"],
)
def test_an_impostor_ends_no_process(wrong: bytes | None, told: str) -> None:
    """Right until ggml is connected, and wrong from then on."""
    right, connected = with_devices(1 << 30), threading.Event()
    with Impostor(lambda *asked: wrong if connected.is_set() else right(*asked)) as other:
        remote = Worker(other.address, quiet=None if wrong else 2.0)
        connected.set()
        with pytest.raises(DeviceLostError, match=told):
            remote.memory()
        remote.close()


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ports at which this process has listened. The system gives the first of them for as long as it is free, and else
    none that the tests before this one used: which those are is chance.
    """
    ports: list[int] = []
    create = socket.create_server
    used = set(PORTS._workers)

    def create_server(address: tuple[str, int], **options: Any) -> socket.socket:
        if address[1] == 0 and ports:
            with contextlib.suppress(OSError):
                return create((address[0], ports[0]), **options)
        with contextlib.ExitStack() as refused:
            made = create(address, **options)
            while address[1] == 0 and made.getsockname()[1] in used:
                refused.enter_context(made)
                made = create(address, **options)
        ports.append(made.getsockname()[1])
        return made

    monkeypatch.setattr(socket, "create_server", create_server)
    return ports


def free(port: int) -> bool:
    """Whether no relay listens there any more."""
    with contextlib.suppress(OSError), socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", port))
        found.listen()
        return True
    return False


def test_a_port_is_not_used_for_other_devices(listening: list[int], worker: RunningWorker) -> None:
    """ggml keeps by the port how many devices there are, and would refuse or use wrong sizes."""
    others = [with_devices(1 << 30), with_devices(3 << 30, 5 << 30, 7 << 30), with_devices(2 << 30)]
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(Impostor(answer)) for answer in others]
        listening.clear()
        for other, sizes in zip(found, ([1], [3, 5, 7], [2]), strict=True):
            with contextlib.closing(Worker(other.address)) as remote:
                assert [total >> 30 for _, total in remote.memory()] == sizes
                assert [device.memory_total >> 30 for device in remote.devices] == sizes
            eventually(lambda: free(listening[0]))
        assert len(set(listening)) == 3
        with Backend(BackendParams(threads=1, devices=(worker.address,))) as backend, Storage(backend, 1) as storage:
            tensor = storage.add("w", "f32", (3,))
            storage.allocate(0)
            tensor.set(np.array([1, 2, 3], np.float32))
            np.testing.assert_array_equal(tensor.numpy(), [1, 2, 3])


def test_a_worker_is_found_at_the_same_port_again(listening: list[int]) -> None:
    """What ggml keeps does not grow with connections. It asks for the number of devices once."""
    right, asked = with_devices(1 << 30), []

    def answer(command: int, body: bytes) -> bytes:
        asked.append(command)
        return right(command, body)

    with Impostor(answer) as other:
        listening.clear()
        for _ in range(3):
            with contextlib.closing(Worker(other.address)) as remote:
                assert remote.memory() == [(1 << 30, 1 << 30)]
            eventually(lambda: free(listening[0]))
    assert len(set(listening)) == 1
    assert asked.count(15) == 3 + 1


def test_a_port_where_ggml_was_misled_is_not_used_again(listening: list[int]) -> None:
    """A worker is gone when ggml asks for the alignment: the relay makes it up, and ggml keeps it."""
    right, asked = with_devices(1 << 30), []

    def answer(command: int, body: bytes) -> bytes | None:
        asked.append(command)
        return None if asked.count(1) == 2 and command == 1 else right(command, body)

    with Impostor(answer) as other:
        listening.clear()
        with Backend(BackendParams(threads=1, devices=(str(other.address),))) as backend:
            assert backend.workers[0].lost
        assert asked.count(1) == 2
        eventually(lambda: free(listening[0]))
        with contextlib.closing(Worker(other.address)) as remote:
            assert remote.memory() == [(1 << 30, 1 << 30)]
    assert len(set(listening)) == 2


def test_the_protocol_is_that_of_the_pinned_sources() -> None:
    """The relay knows which commands have an answer, and how long it is."""
    source = next(ROOT.glob("build/*/ggml-source/src/ggml-rpc/ggml-rpc.cpp"), None)
    if source is None:
        pytest.skip("the sources of ggml are not here")
    header = (source.parents[2] / "include/ggml-rpc.h").read_text()
    version = [int(re.findall(rf"RPC_PROTO_{part}_VERSION\s+(\d+)", header)[0]) for part in ("MAJOR", "MINOR")]
    assert tuple(version) == worker_client.PROTOCOL
    text = source.read_text()
    enum = re.findall(r"enum rpc_cmd \{(.*?)RPC_CMD_NONE", text, re.DOTALL)[0]
    theirs = re.findall(r"RPC_CMD_(\w+)", enum)
    ours = (ROOT / "csrc/rpc/protocol.h").read_text()
    assert re.findall(r"^    OE_RPC_([A-Z_]+?)(?: = 0)?,$", ours, re.MULTILINE) == theirs
    sizes = {"uint8_t": 1, "uint32_t": 4, "uint64_t": 8}
    for command in theirs:
        struct_body = re.search(rf"struct rpc_msg_{command.lower()}_rsp \{{(.*?)\}};", text, re.DOTALL)
        case = re.search(rf"((?:    case OE_RPC_\w+:\n)*)    case OE_RPC_{command}:\n(?:    case OE_RPC_\w+:\n)*"
                         r"        return (\w+);", ours.split("oe_rpc_own_answer")[0])  # fmt: skip
        if command in ("HELLO", "GET_TENSOR"):
            continue
        if struct_body is None:
            assert case is None, command
        else:
            fields = re.findall(r"(\w+)\s+\w+;", struct_body[1])
            assert case is not None, command
            assert int(case[2]) == sum(sizes[field] for field in fields), command
