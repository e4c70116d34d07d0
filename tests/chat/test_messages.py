"""Messages as OpenAI's and Ollama's APIs take them."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from functools import partial, partialmethod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import PIL.Image
import pytest

from ollama_engine.chat.messages import Message, ToolCall, read_messages
from ollama_engine.chat.plain_data import plain_data, read_documents
from ollama_engine.chat.tool_schemas import definitions, read_tools
from ollama_engine.errors import ChatError
from ollama_engine.segments import Media
from tests.multimodal.pictures import FILES

DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]
IMAGE = base64.b64encode(b"image").decode()


def read(message: Any) -> Message:
    return read_messages([message])[0]


def called(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}


def test_forms_of_the_same_call() -> None:
    wanted = ToolCall("f", {"b": 1, "a": "é"}, "a", '{"b": 1, "a": "é"}')
    as_text = read(called(name="f", arguments='{"b": 1, "a": "é"}')).tool_calls
    assert as_text == read(called(name="f", arguments={"b": 1, "a": "é"})).tool_calls == (wanted,)
    ollama = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1}}}]}
    assert read(ollama).tool_calls == (ToolCall("f", {"b": 1}),)
    assert list(as_text[0].arguments) == ["b", "a"]


@pytest.mark.parametrize(("arguments", "wanted", "text"), [
    (None, {}, "{}"), ("", {}, "{}"), (" ", {}, " "), ('{"a": ', '{"a": ', '{"a": '), ("[1]", "[1]", "[1]"),
    ('{"a": 1e400}', {"a": float("inf")}, '{"a": 1e400}'),
])  # fmt: skip
def test_arguments_that_a_model_wrote(arguments: Any, wanted: Any, text: str) -> None:
    call = read(called(name="f", arguments=arguments)).tool_calls[0]
    assert (call.written, call.arguments_text) == (wanted, text)
    assert call.arguments == (wanted if isinstance(wanted, dict) else {})


def test_names_of_fields() -> None:
    assert read({"role": "tool", "tool_name": "f", "content": "x"}).name == "f"
    assert read({"role": "tool", "name": "f", "tool_call_id": "a", "content": "x"}).tool_call_id == "a"
    for name in ("reasoning", "thinking", "reasoning_content"):
        assert read({"role": "assistant", "content": "x", name: "why"}).reasoning == "why"
    openai = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None}
    assert read(openai) == Message("assistant", "x", extra={"annotations": []})
    assert read({"role": "assistant", "tool_plan": "I look.", "content": "x"}).extra == {"tool_plan": "I look."}


def test_parts_and_images() -> None:
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    content = [{"type": "text", "text": "a"}, url, {"type": "text", "text": "b"}]
    message = read({"role": "user", "content": content})
    assert message.content == ("a", Media(b"image"), "b")
    assert (message.text, message.media) == ("ab", (Media(b"image"),))
    assert read({"role": "user", "content": "a", "images": [IMAGE, b"x"]}).content == (
        Media(b"image"),
        Media(b"x"),
        "a",
    )
    assert read({"role": "user", "content": [{"type": "input_text", "text": "a"}]}).text == "a"
    assert read({"role": "user", "content": "a", "images": []}).content == "a"


def test_images_in_every_form(tmp_path: Path) -> None:
    data, picture, array = FILES["png"], PIL.Image.new("RGB", (2, 2)), np.zeros((2, 2), np.uint8)
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[at : at + 76] for at in range(0, len(text), 76))
    path = tmp_path / "a b.png"
    path.write_bytes(data)
    as_bytes = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}", "detail": "high"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{text}"},
        {"type": "input_image", "image_url": text},
        {"type": "image", "image": text}, {"type": "image", "image": lines}, {"type": "image", "base64": text},
        {"type": "image", "url": f"data:;base64,{text}"}, {"type": "image", "image": data}, Media(data),
    ]  # fmt: skip
    assert read({"role": "user", "content": as_bytes}).media == (Media(data),) * len(as_bytes)
    as_path = [{"type": "image", "image": str(path)}, {"type": "image", "path": str(path)}, Media(str(path))]
    assert read({"role": "user", "content": as_path}).media == (Media(str(path)),) * 3
    for opaque in (picture, array, path, io.BytesIO(data), bytearray(data)):
        for part in (opaque, {"type": "image", "image": opaque}, {"type": "image", "path": opaque}, Media(opaque)):
            assert read({"role": "user", "content": ["x", part]}).media[0].data is opaque
        assert read({"role": "user", "content": "x", "images": [opaque]}).media[0].data is opaque
    assert read({"role": "user", "content": "x", "images": [text, str(path)]}).media == (Media(data), Media(str(path)))


def test_base64_text_that_is_also_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four letters are base64 of three bytes; what is an image in base64 is never looked for among the files."""
    monkeypatch.chdir(tmp_path)
    Path("bees").write_bytes(FILES["png"])
    assert read({"role": "user", "content": "x", "images": ["bees"]}).media == (Media("bees"),)
    assert read({"role": "user", "content": "x", "images": ["cats"]}).media == (Media(base64.b64decode("cats")),)
    sent = {"type": "image_url", "image_url": "bees"}
    assert read({"role": "user", "content": [sent]}).media == (Media(base64.b64decode("bees")),)


@dataclass
class Part:
    type: str
    text: str


@dataclass
class Question:
    content: list[Part]
    role: str = "user"
    more: dict[str, Any] = field(default_factory=dict)


class Text(str):
    __slots__ = ()


def test_objects() -> None:
    message = read(Question([Part("text", "a"), Part("text", "b")]))
    assert (message.text, message.extra) == ("ab", {"more": {}})
    assert type(read({"role": Text("user"), "content": Text("x")}).content) is str
    call = ToolCall("f", {"a": 1}, "id", '{"a":1}')
    for same in (Message("user", "x"), Message("assistant", "x", "why", (call,), extra={"b": 1}),
                 Message("user", ("a", Media(b"b"))), Message("tool", "x", tool_call_id="id", name="f")):  # fmt: skip
        assert read(same) == same
    assert type(read(Message("user", Text("x"))).content) is str
    assert read(called(name="f", arguments="[" * 100_000)).tool_calls[0].written == "[" * 100_000


class Failing:
    def model_dump(self) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(("messages", "told"), [
    ("Hello", "messages: expected a list of messages such as"),
    ({"role": "user"}, "messages: expected a list"),
    ([], "one message at least"),
    ([[{"role": "user", "content": "x"}]], "expected one conversation, got a list of them; call it for each, or map_b"),
    ([("user", "x")], r"messages\[0\]: expected a dict, a dataclass or an object with model_dump, got tuple"),
    ([[]], r"messages\[0\]: expected a dict, a dataclass or an object with model_dump, got list"),
    (["Hello"], r"messages\[0\]: expected a dict, a dataclass"),
    ([{"content": "x"}], r'messages\[0\].role: expected "system", "user"'),
    ([{"role": 5, "content": "x"}], r"messages\[0\].role: .* got 5"),
    ([{"role": "user", "content": "x"}, {"role": "user"}], r"messages\[1\].content: expected a text, or a list"),
    ([{"role": "user", "content": 5}], r"messages\[0\].content: expected a text, or a list of parts, got int"),
    ([{"role": "user", "content": [5]}], r"messages\[0\].content\[0\]: expected a part"),
    ([{"role": "user", "content": [{"type": "audio"}]}], r"content\[0\].type: expected \"text\", \"image_url\" or"),
    ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text: expected a text"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}],
     r"content\[0\].image_url.url: expected a data URL.* addresses such as 'https://x/y.png' are not fetched; fetch"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png,x"}]}], "data URL in base64"),
    ([{"role": "user", "content": "x", "images": ["%"]}], r"images\[0\]: expected a path, .*; '%' is no file, and no"),
    ([{"role": "user", "content": "x", "images": [io.StringIO()]}], r"images\[0\]: .*StringIO; pass the path of the f"),
    ([{"role": "user", "content": "x", "images": "x"}], "images: expected a list"),
    ([{"role": "user", "content": "x", "name": 5}], r"messages\[0\].name: expected a text, got int"),
    ([{"role": "user", "content": "x", "weight": object()}], r"messages\[0\].weight: expected what JSON can hold"),
    ([Message("user", 5)], r"messages\[0\].content: expected a text"),  # type: ignore[arg-type]
    ([Message("user", "x", extra={"a": object()})], r"messages\[0\].a: expected what JSON can hold"),
    ([{"role": "user", "content": DEEP}], r"messages\[0\]: .* nested too deeply"),
    ([{"role": "user", "content": "x", "meta": {(1, 2): 3}}], r"messages\[0\].meta: expected texts as keys, got tuple"),
    ([{"role": "user", "content": "x", "meta": {"a": 10**5000}}], r"messages\[0\].meta.a: expected an integer of at"),
    ([{"role": "user", "content": "x", "images": ["é"]}], r"images\[0\]: expected a path, .*'é' is no file"),
    ([{"role": "user", "content": "x", "images": ["a\0"]}], r"images\[0\]: expected a path, .* is no file"),
    ([{"role": "user", "content": "x", "images": [5]}], r"images\[0\]: expected a path, a data URL, .*, got int"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": __file__}}]}],
     r"image_url.url: expected a data URL, .* is no base64 text: "),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}],
     r"image_url.url: expected a data URL, .*, got int"),
    ([{"role": "user", "content": [{"type": "image_url", "image": "x"}]}], r'an image in "image_url", got none'),
    ([{"role": "user", "content": [{"type": "image"}]}], r'an image in "image", "path", "url" or "base64", got none'),
    ([{"role": "user", "content": [{"type": "image", "image": "x", "path": "y"}]}], r'got "image" and "path"$'),
    ([{"role": "user", "content": [{"type": "image", "url": "file:///x.png"}]}], "are not fetched"),
    ([{"role": "user", "content": [{"type": "image", "base64": "é"}]}],
     r"content\[0\].base64: expected a data URL, .*'é' is no base"),
    ([{"role": "user", "content": "x", "weight": PIL.Image.new("L", (1, 1))}], r"weight: expected what JSON can hold"),
    ([Failing()], r"messages\[0\]: model_dump raises ZeroDivisionError"),
    ([called(name="f", arguments={"a": 10**5000})], r"messages\[0\].*arguments.a: expected an integer of at most 8192"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": b"x"}}}]}],
     r"tool_calls\[0\].function.arguments: expected what JSON can hold"),
    ([{"role": "assistant", "tool_calls": {}}], r"tool_calls: expected a list, got dict"),
    ([{"role": "assistant", "tool_calls": ["f"]}], r"tool_calls\[0\]: expected"),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], r"tool_calls\[0\].function.name: expected the name"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}],
     r"tool_calls\[0\].function.arguments: expected an object or its JSON text, got list"),
])  # fmt: skip
def test_what_cannot_be_read(messages: Any, told: str) -> None:
    with pytest.raises(ChatError, match=told):
        read_messages(messages)


@pytest.mark.parametrize("arguments", [{"a": b"x"}, {"a": 10**5000}, {(1, 2): 3}, {"a": DEEP}], ids=lambda _: "")
def test_arguments_that_json_cannot_hold(arguments: Any) -> None:
    with pytest.raises(ChatError, match="arguments of f: expected what JSON can hold"):
        ToolCall("f", arguments)


def test_arguments_that_are_text() -> None:
    arguments: Any = '{"a": 1}'
    with pytest.raises(ChatError, match="arguments of f: expected an object, got str; give JSON text in a message"):
        ToolCall("f", arguments)


def test_arguments_in_another_mapping() -> None:
    call = ToolCall("f", MappingProxyType({"a": 1}))
    assert (call, call.written, call.arguments_text) == (ToolCall("f", {"a": 1}), {"a": 1}, '{"a": 1}')


def test_data_that_is_nested_too_deeply() -> None:
    for read_data in (lambda: plain_data({"a": DEEP}, "variables"), lambda: read_documents([{"a": DEEP}]),
                      lambda: read_tools([{"name": "f", "parameters": {"a": DEEP}}])):  # fmt: skip
        with pytest.raises(ChatError, match="nested too deeply"):
            read_data()


def test_keys_as_json_has_them() -> None:
    assert plain_data({1: 2, None: 3, "a": ({},)}, "x") == {1: 2, None: 3, "a": [{}]}


def test_tools() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    wanted = [{"type": "function", "function": function}]
    assert read_tools([function]) == read_tools(wanted) == read_tools(({"type": "function", **function},)) == wanted
    assert read_tools(None) is None
    assert read_tools([]) is None
    assert [(tool.name, tool.parameters) for tool in definitions(wanted)] == [("f", {"type": "object"})]
    assert read_tools([{"name": "f", "parameters": None}]) is not None


@pytest.mark.parametrize(("tools", "told"), [
    ("f", "tools: expected a list"), ([5], r"tools\[0\]: expected a dict"),
    ([{"function": {}}], r"tools\[0\].function.name"),
    ([{"function": {"name": "a\udc80"}}], r"tools\[0\].function.name: expected no lone surrogates, got 'a\\udc80'"),
    ([{"name": "f", "parameters": 5}], "parameters: expected a JSON"),
    ([Path], r"tools\[0\]: expected what JSON can hold, got the class Path; describe a tool by a dict"),
    ([partial(print)], r"tools\[0\]: expected what JSON can hold, got partial; .* or pass a function"),
    ([partialmethod(print)], r"tools\[0\]: expected what JSON can hold, got partialmethod; .* or pass a function"),
    ([{"name": partialmethod(print)}], r"tools\[0\].name: expected what JSON can hold, got partialmethod"),
    ([{"name": read_tools}], r"tools\[0\].name: expected what JSON can hold, got the function read_tools"),
])  # fmt: skip
def test_what_are_no_tools(tools: Any, told: str) -> None:
    with pytest.raises(ChatError, match=told):
        read_tools(tools)
