"""Conversations about a picture, in Gemma's chat form or as plain text, and the chat template that says the former."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .model import IMAGE_TOKENS
from .questions import DESCRIBE, ask, describe
from .scene import Scene, pick

__all__ = ["CHAT_TEMPLATE", "IMAGE", "NO_PICTURE", "Piece", "conversation", "description", "prompt"]

IMAGE = f"\n\n<start_of_image>{'<image_soft_token>' * IMAGE_TOKENS}<end_of_image>\n\n"
"""What transformers' Gemma3Processor makes of <start_of_image>."""
NO_PICTURE = "there is no picture"
MOST_QUESTIONS = 2
PLAIN, WITHOUT, TEXT_FIRST = 0.1, 0.03, 0.15
"""Shares of plain text, of questions without a picture, and of questions before their picture."""

CHAT_TEMPLATE = """\
{{ bos_token }}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {%- set text = namespace(value='') -%}
    {%- if message['content'] is string -%}
        {%- set text.value = message['content'] | trim -%}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'image' -%}
                {%- set text.value = text.value ~ '<start_of_image>' -%}
            {%- elif part['type'] == 'text' -%}
                {%- set text.value = text.value ~ (part['text'] | trim) -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {%- if role == 'system' -%}
        {%- set ns.system = text.value ~ '\\n\\n' -%}
    {%- else -%}
        {{- '<start_of_turn>' ~ role ~ '\\n' ~ ns.system ~ text.value ~ '<end_of_turn>\\n' -}}
        {%- set ns.system = '' -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' -}}
{%- endif -%}
"""


@dataclass(frozen=True)
class Piece:
    """A part of a conversation, and whether the model is to learn to say it."""

    text: str
    learn: bool = False


def prompt(question: str, *, image: str = IMAGE) -> str:
    """A first question in chat form, up to where the answer begins."""
    return f"<bos><start_of_turn>user\n{image}{question}<end_of_turn>\n<start_of_turn>model\n"


def conversation(scene: Scene, rng: Random) -> list[Piece]:
    """A random conversation about the scene; its picture is in it exactly once, or not at all."""
    chance = rng.random()
    if chance < PLAIN:
        return _plain(scene, rng)
    if chance < PLAIN + WITHOUT:
        return [Piece(prompt(ask(scene, rng)[0], image="")), Piece(NO_PICTURE + "<end_of_turn>", learn=True)]
    question, answer = ask(scene, rng)
    before, behind = (question, "") if rng.random() < TEXT_FIRST else ("", question)
    pieces = [Piece(prompt(before + IMAGE + behind, image="")), Piece(answer + "<end_of_turn>", learn=True)]
    for _ in range(int(rng.random() * MOST_QUESTIONS)):
        question, answer = ask(scene, rng)
        pieces.append(Piece(f"\n<start_of_turn>user\n{question}<end_of_turn>\n<start_of_turn>model\n"))
        pieces.append(Piece(answer + "<end_of_turn>", learn=True))
    return pieces


def description(scene: Scene) -> list[Piece]:
    """The first question that people ask, with its answer."""
    return [Piece(prompt(DESCRIBE[0])), Piece(describe(scene) + "<end_of_turn>", learn=True)]


def _plain(scene: Scene, rng: Random) -> list[Piece]:
    """The picture and its description, or a question and its answer behind a space."""
    if rng.random() < 0.3:
        return [Piece("<bos>" + IMAGE), Piece(describe(scene) + "<eos>", learn=True)]
    question, answer = (pick(rng, DESCRIBE), describe(scene)) if rng.random() < 0.3 else ask(scene, rng)
    return [Piece(f"<bos>{IMAGE}{question}"), Piece(f" {answer}<eos>", learn=True)]
