"""Training documents: stories alone, with questions, on request, and as llama-3 chats.

A document is text in which special tokens stand under their own names; `train.py` puts `<|begin_of_text|>` before it
and `<|end_of_text|>` after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from .grammar import expand
from .stories import Story, make_story
from .texts import FOLDER, columns, lines, read_sections

SPECIAL_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{%- endif %}"
)
"""The llama-3 chat form as a Jinja template, for `tokenizer.chat_template`."""

_CHAT = read_sections(FOLDER / "chat.txt")
SYSTEM_PROMPTS = lines(_CHAT, "system")
REQUESTS = lines(_CHAT, "requests")
INTRODUCTIONS = lines(_CHAT, "introductions")
SMALL_TALK = tuple(columns(line) for line in lines(_CHAT, "small talk"))
GREETINGS = SMALL_TALK[:5]
AFTER_STORY = tuple(columns(line) for line in lines(_CHAT, "after a story"))


def documents(seed: int, *, held: bool = False) -> Iterator[str]:
    """An endless stream of documents; the same seed gives the same stream."""
    rng = Random(f"{seed}:{'held' if held else 'train'}")
    while True:
        form = rng.choices((plain, titled, questioned, requested, chat, small_talk), (30, 5, 10, 16, 36, 3))[0]
        yield form(make_story(rng, held=held), rng)


def plain(story: Story, rng: Random) -> str:
    """The story alone."""
    return story.text


def titled(story: Story, rng: Random) -> str:
    """The story under its title."""
    return f"{story.title}\n\n{story.text}"


def questioned(story: Story, rng: Random) -> str:
    """The story, then one to three questions about it with their answers."""
    asked = rng.sample(story.questions, rng.randint(1, 3))
    return story.text + "\n\n" + "\n".join(f"Question: {question}\nAnswer: {answer}" for question, answer in asked)


def requested(story: Story, rng: Random) -> str:
    """A request in plain text, then the story."""
    return f"{_request(story, rng)}\n\n{story.text}"


def chat(story: Story, rng: Random) -> str:
    """A llama-3 chat: a request, the story, perhaps questions, perhaps small talk around it."""
    turns = [_small(rng, GREETINGS, story)] if rng.random() < 0.15 else []
    request, introduction = _request(story, rng), expand(rng.choice(INTRODUCTIONS), {}, rng)
    turns.append((request, f"{introduction}\n\n{story.text}" if introduction else story.text))
    turns += rng.sample(story.questions, rng.choice((0, 0, 1, 1, 2)))
    if rng.random() < 0.2:
        turns.append(_small(rng, AFTER_STORY, story))
    return _chat(turns, rng)


def small_talk(story: Story, rng: Random) -> str:
    """A llama-3 chat without a story."""
    return _chat([_small(rng, SMALL_TALK, story) for _ in range(rng.randint(1, 2))], rng)


def _request(story: Story, rng: Random) -> str:
    slots = {"kind": story.hero, "thing": story.thing, "summary": story.summary}
    return expand(rng.choice(REQUESTS), slots, rng).replace("?.", "?")


def _small(rng: Random, choices: tuple[tuple[str, ...], ...], story: Story) -> tuple[str, str]:
    said, replied = rng.choice(choices)
    slots = {"kind": story.hero, "thing": story.thing}
    return expand(said, slots, rng), expand(replied, slots, rng)


def _chat(turns: list[tuple[str, str]], rng: Random) -> str:
    text = _message("system", rng.choice(SYSTEM_PROMPTS)) if rng.random() < 0.3 else ""
    return text + "".join(_message("user", said) + _message("assistant", replied) for said, replied in turns)


def _message(role: str, content: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>"
