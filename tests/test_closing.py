"""`with` and `async with` close what they were given, also where the block fails, and hide no error."""

from __future__ import annotations

import asyncio

import pytest

from ollama_engine.closing import AsyncClosing, Closing


class File(Closing):
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Stream(AsyncClosing):
    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


def test_it_is_closed_once_at_the_end() -> None:
    with File() as file:
        assert file.closed == 0
    assert file.closed == 1
    with pytest.raises(KeyError, match="mine"), file:
        raise KeyError("mine")
    assert file.closed == 2


def test_a_stream_is_closed_once_at_the_end() -> None:
    async def use(stream: Stream) -> None:
        async with stream as same:
            assert same is stream
            assert stream.closed == 0
        assert stream.closed == 1
        with pytest.raises(KeyError, match="mine"):
            async with stream:
                raise KeyError("mine")
        assert stream.closed == 2

    asyncio.run(use(Stream()))


@pytest.mark.parametrize("base", [Closing, AsyncClosing])
def test_a_class_says_how_it_is_closed(base: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        type("Forgetful", (base,), {})()
