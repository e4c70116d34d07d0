"""Conversations of Anthropic's requests, as the engine takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ollama_engine.server.anthropic.schemas import CountRequest, InputMessage, Tool
from ollama_engine.server.errors import ApiError
from ollama_engine.server.requests.thinking import NO_REASONING, REASONING, Ways, ways_of_effort

__all__ = ["chat_options", "engine_messages", "thinking_ways"]

Block = Mapping[str, Any]
Message = dict[str, Any]
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def engine_messages(request: CountRequest) -> list[Message]:
    """The system message and all turns. Raises ApiError that names the block that cannot be read."""
    messages: list[Message] = []
    if request.system:
        messages.append({"role": "system", "content": _system(request.system)})
    for number, message in enumerate(request.messages):
        messages += _turn(f"messages.{number}", message)
    return messages


def _system(system: str | Sequence[Block]) -> str:
    if isinstance(system, str):
        return system
    for number, block in enumerate(system):
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise ApiError(400, f"system.{number}: expected a block of text, got {block.get('type')!r:.40}")
    return "\n".join(str(block["text"]) for block in system)


def _turn(where: str, message: InputMessage) -> Iterator[Message]:
    """A turn is one message, but for results of tools, which are messages of their own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    if message.role == "assistant":
        yield _assistant(where, message.content)
        return
    parts: list[Message] = []
    for number, block in enumerate(message.content):
        place = f"{where}.content.{number}"
        if block.get("type") != "tool_result":
            parts += _parts(place, block)
            continue
        if parts:
            yield {"role": message.role, "content": parts}
            parts = []
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(place, block)}
    if parts or not message.content:
        yield {"role": message.role, "content": parts or ""}


def _result(where: str, block: Block) -> str | list[Message]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(inner, Mapping) for inner in content):
        raise ApiError(400, f"{where}.content: expected a text or a list of blocks")
    return [part for number, inner in enumerate(content) for part in _parts(f"{where}.content.{number}", inner)]


def _assistant(where: str, content: Sequence[Block]) -> Message:
    message: Message = {"role": "assistant", "content": []}
    for number, block in enumerate(content):
        place, kind = f"{where}.content.{number}", block.get("type")
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or {}}
            message.setdefault("tool_calls", []).append({"id": block.get("id"), "function": function})
        elif kind == "thinking":
            message["reasoning_content"] = message.get("reasoning_content", "") + _text(place, block, "thinking")
        elif kind != "redacted_thinking":  # only its writer can read that
            message["content"] += _parts(place, block)
    return message


def _parts(where: str, block: Block) -> list[Message]:
    """Text and images of a block, as parts of OpenAI's form, which the engine reads."""
    readers: dict[str, Callable[[str, Block], list[Message]]] = {
        "text": lambda where, block: [{"type": "text", "text": _text(where, block, "text")}],
        "image": _image,
        "document": _document,
    }
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in readers:
        raise ApiError(400, f"{where}.type: {kind!r:.40} cannot be read here; expected {', '.join(readers)}")
    return readers[kind](where, block)


def _image(where: str, block: Block) -> list[Message]:
    source = _source(where, block)
    if source.get("type") != "base64":
        raise ApiError(
            400, f"{where}.source.type: {source.get('type')!r:.40} is not fetched here; send the image in base64"
        )
    url = f"data:{source.get('media_type') or 'image/png'};base64,{_text(f'{where}.source', source, 'data')}"
    return [{"type": "image_url", "image_url": {"url": url}}]


def _document(where: str, block: Block) -> list[Message]:
    source = _source(where, block)
    if source.get("type") != "text":
        raise ApiError(400, f'{where}.source.type: only documents of "text" are read, got {source.get("type")!r:.40}')
    title = block.get("title")
    head = f"{title}\n\n" if isinstance(title, str) else ""
    return [{"type": "text", "text": head + _text(f"{where}.source", source, "data")}]


def _source(where: str, block: Block) -> Block:
    source = block.get("source")
    if not isinstance(source, Mapping):
        raise ApiError(400, f"{where}.source: expected an object with type and data")
    return source


def _text(where: str, block: Block, name: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise ApiError(400, f"{where}.{name}: expected a text, got {type(text).__name__}")
    return text


# -- options -----------------------------------------------------------------------------------------------------------


def chat_options(request: CountRequest) -> dict[str, Any]:
    """Tools, the choice among them, the budget of thinking and the form of the answer."""
    options: dict[str, Any] = {}
    if request.tools:
        options["tools"] = [_tool(number, tool) for number, tool in enumerate(request.tools)]
    choice = request.tool_choice
    if choice is not None:
        if choice.type == "tool" and not choice.name:
            raise ApiError(400, "tool_choice.name: expected the name of a tool")
        named = {"type": "function", "function": {"name": choice.name}}
        options["tool_choice"] = named if choice.type == "tool" else CHOICES[choice.type]
        if choice.disable_parallel_tool_use:
            options["parallel_tool_calls"] = False
    thinking = request.thinking
    if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is not None:
        options["reasoning_budget"] = thinking.budget_tokens
    if request.output_config is not None and request.output_config.format is not None:
        options["format"] = request.output_config.format.json_schema
    return options


def _tool(number: int, tool: Tool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise ApiError(400, f"tools.{number}.type: {tool.type!r:.40} runs on Anthropic's servers only")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema or {"type": "object"}}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def thinking_ways(request: CountRequest) -> Ways:
    """How the model thinks: not at all unless the request says so, as with Anthropic's."""
    thinking = request.thinking
    if thinking is None or thinking.type == "disabled":
        return NO_REASONING
    effort = request.output_config.effort if request.output_config else None
    return REASONING if effort is None else ways_of_effort(effort)
