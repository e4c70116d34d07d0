"""Images in conversations stand where the template, or the place in the message, puts them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2.sandbox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.chat.conversation import render_conversation
from ollama_engine.chat.media_marks import MediaMarks, writes_images
from ollama_engine.chat.messages import read_messages
from ollama_engine.chat.template import ChatTemplate
from ollama_engine.errors import ChatError
from ollama_engine.segments import Media, Segment, Text
from tests.chat import real_templates
from tests.support.suite import scaled, slow_except

# Of our own, in the manner of families whose templates are not among the pinned ones.
LIKE_GEMMA3 = """{{ bos_token }}{%- for m in messages -%}
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}
{%- if m.content is string -%}{{ m.content | trim }}
{%- else -%}{%- for part in m.content -%}
{%- if part.type == 'image' -%}{{ '<start_of_image>' }}{%- else -%}{{ part.text | trim }}{%- endif -%}
{%- endfor -%}{%- endif -%}{{ '<end_of_turn>\n' }}
{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""
LIKE_QWEN = """{% set count = namespace(value=0) %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{% if 'image' in part or \
part.type == 'image' %}{% set count.value = count.value + 1 %}{% if add_vision_id %}Picture {{ count.value }}: \
{% endif %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""".replace("\\\n", "")
IMAGES_FIRST = """{% for m in messages %}{{ m.role | upper }}: {% if m.content is string %}{{ m.content }}{% else %}\
{% for part in m.content if part.type == 'image' %}{{ '<image>\n' }}{% endfor %}\
{% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}{% endif %} {% endfor %}\
{% if add_generation_prompt %}ASSISTANT:{% endif %}""".replace("\\\n", "")
PARTS_ONLY = IMAGES_FIRST.replace("{% if m.content is string %}{{ m.content }}{% else %}", "").replace(
    "{% endfor %}{% endif %} {% endfor %}", "{% endfor %} {% endfor %}"
)
LIKE_LLAMA = """{{ bos_token }}{% set ns = namespace(images=false) %}{% for m in messages %}\
{% if m.content is not string %}{% for part in m.content if part.type == 'image' %}{% set ns.images = true %}\
{% endfor %}{% endif %}{% endfor %}{% if ns.images and messages[0].role == 'system' %}\
{{ raise_exception('images go with no system message') }}{% endif %}{% for m in messages %}\
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}{% if m.content is string %}{{ m.content }}{% else %}\
{% for part in m.content %}{% if part.type == 'image' %}{{ '<|image|>' }}{% elif part.type == 'text' %}\
{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""".replace("\\\n", "")
OWN = {
    "llama 3.2 and 4": (LIKE_LLAMA, "<|image|>"),
    "gemma 3": (LIKE_GEMMA3, "<start_of_image>"),
    "qwen 2.5 vl": (LIKE_QWEN, "<|vision_start|><|image_pad|><|vision_end|>"),
    "llava": (IMAGES_FIRST, "<image>"),
    "parts only": (PARTS_ONLY, "<image>"),
}
REAL = {
    "Mistral-Small-3.2-24B-Instruct-2506": "[IMG]",
    "mistralai-Ministral-3-14B-Reasoning-2512": "[IMG]",
    "unsloth-mistral-Devstral-Small-2507": "[IMG]",
    "google-gemma-4-31B-it": "<|image|>",
    "Qwen3.5-4B": "<|vision_start|><|image_pad|><|vision_end|>",
}

NOW = datetime(2026, 7, 1, 12)
CAT, DOG, OWL = Media(b"cat"), Media(b"dog"), Media(b"owl")
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": [{"type": "image", "image": CAT}, "What is this?"]}],
    "behind the text": [{"role": "user", "content": ["What is this?", {"type": "image", "image": CAT}]}],
    "between": [{"role": "user", "content": ["Is ", {"type": "image", "image": CAT}, " like ",
                                             {"type": "image", "image": DOG}, "?"]}],
    "beside": [{"role": "user", "content": "Which is larger?", "images": [CAT, DOG]}],
    "only": [{"role": "user", "content": "", "images": [OWL]}],
    "turns": [
        {"role": "user", "content": [{"type": "image", "image": CAT}, "And this?"]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": ["Now ", {"type": "image", "image": DOG}, {"type": "image", "image": CAT}]},
    ],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?", "images": [OWL]}],
    "typed": [{"role": "user", "content": [
        "<start_of_image> <image> [IMG] <|image|> <|vision_start|><|image_pad|><|vision_end|> <image-0-0>",
        {"type": "image", "image": CAT}, "[IMG]"]}],
}  # fmt: skip


def segments_of(source: str, placeholder: str, messages: Sequence[object], **options: Any) -> list[Segment]:
    template = ChatTemplate(source, {"bos_token": "<bos>", "eos_token": "<eos>"}, lambda: NOW)
    marks = MediaMarks(placeholder if writes_images(template, placeholder) else None)
    text = render_conversation(template, marks.mark(read_messages(messages)), parts_of=marks.parts,
                               add_generation_prompt=True, **options)  # fmt: skip
    return marks.segments(text)


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def reference(source: str, messages: Sequence[dict[str, Any]]) -> str:
    """The text of transformers' apply_chat_template: its settings of jinja2, and image parts as its users pass them."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": NOW.strftime}
    return environment.from_string(source).render(
        messages=[as_transformers_take_it(message) for message in messages], bos_token="<bos>", eos_token="<eos>",
        add_generation_prompt=True,
    )  # fmt: skip


def as_transformers_take_it(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    parts = [*({"type": "image"} for _ in message.get("images", [])), *([content] if content else [])]
    if isinstance(content, list) or "images" in message:
        given = content if isinstance(content, list) else parts
        content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in given]
    return {"role": message["role"], "content": content}


def joined(segments: Sequence[Segment], placeholder: str) -> str:
    return "".join(segment.text if isinstance(segment, Text) else placeholder for segment in segments)


def media_of(messages: Sequence[dict[str, Any]]) -> list[Media]:
    return [media for message in read_messages(messages) for media in message.media]


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("family", OWN)
def test_images_stand_where_the_template_puts_them(family: str, name: str) -> None:
    source, placeholder = OWN[family]
    messages = CONVERSATIONS[name]
    if family == "llama 3.2 and 4" and name == "system":
        with pytest.raises(ChatError, match="the chat template refuses the messages: images go with no system message"):
            segments_of(source, placeholder, messages)
        return
    if family == "parts only":
        messages = [{**each, "content": [each["content"]] if isinstance(each["content"], str) and "images" not in each
                     else each["content"]} for each in messages]  # fmt: skip
    segments = segments_of(source, placeholder, messages)
    assert [segment for segment in segments if isinstance(segment, Media)] == media_of(messages)
    assert joined(segments, placeholder) == reference(source, messages)


@pytest.mark.parametrize("name", slow_except(CONVERSATIONS, "between", "turns", "typed"))
@pytest.mark.parametrize("family", REAL)
def test_templates_of_published_models(family: str, name: str) -> None:
    source, placeholder = real_templates.sources()[family], REAL[family]
    assert writes_images(ChatTemplate(source), placeholder)
    messages = CONVERSATIONS[name]
    segments = segments_of(source, placeholder, messages)
    assert [segment for segment in segments if isinstance(segment, Media)] == media_of(messages)
    assert joined(segments, placeholder) == reference(source, messages)


def test_what_a_user_types_is_no_image() -> None:
    """Only what the template wrote itself gives way to an image; what was typed is not even a control token."""
    source, placeholder = OWN["gemma 3"]
    typed = f"before {placeholder} behind"
    segments = segments_of(source, placeholder, [{"role": "user", "content": typed, "images": [CAT]}])
    assert Text(typed, False) in segments
    assert segments.count(CAT) == 1
    assert segments_of(source, placeholder, [{"role": "user", "content": typed}])[1] == Text(typed, False)


def test_trusted_contents_hold_no_images_either() -> None:
    source, placeholder = OWN["gemma 3"]
    template = ChatTemplate(source)
    marks = MediaMarks(placeholder)
    read = read_messages([{"role": "user", "content": f"x {placeholder}", "images": [CAT]}])
    text = render_conversation(template, marks.mark(read), parts_of=marks.parts)
    segments = marks.segments(text, trust_contents=True)
    assert [segment for segment in segments if isinstance(segment, Media)] == [CAT]
    assert segments[-1] == Text(f"x {placeholder}<end_of_turn>\n", True)


@pytest.mark.parametrize("placeholder", ["<start_of_image>", "<other>"])
def test_a_template_that_knows_no_images_has_them_where_the_part_stands(placeholder: str) -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert not writes_images(ChatTemplate(source), placeholder)
    found = segments_of(source, placeholder, CONVERSATIONS["between"])
    assert found == [Text("<user>", True), Text("Is "), CAT, Text(" like "), DOG, Text("?")]
    beside = segments_of(source, placeholder, CONVERSATIONS["beside"])
    assert beside == [Text("<user>", True), CAT, DOG, Text("Which is larger?")]


def test_a_template_that_writes_something_else_for_images() -> None:
    """Another family's placeholder means nothing to the model: the image stands where its part stands."""
    source, _ = OWN["gemma 3"]
    segments = segments_of(source, "[IMG]", CONVERSATIONS["between"])
    assert segments[1:-1] == [Text("Is "), CAT, Text(" like "), DOG, Text("?")]


def test_what_a_template_refuses_or_loses() -> None:
    lost = "{% if messages | length < 2 %}" + IMAGES_FIRST + "{% endif %}"
    with pytest.raises(ChatError, match=r"wrote what stands for an image \('<image>'\) 0 times, .*: 3$"):
        segments_of(lost, "<image>", CONVERSATIONS["turns"])
    with pytest.raises(ChatError, match=r"\) 2 times, and images .*: 1$"):
        segments_of(
            "{% if messages | length > 1 %}<image>{% endif %}" + IMAGES_FIRST, "<image>", CONVERSATIONS["system"]
        )
    with pytest.raises(ChatError, match=r"does not write all .* exactly once: images 1, written 0"):
        segments_of("{{ messages | length }}", "<image>", CONVERSATIONS["one"])
    with pytest.raises(ChatError, match="images 1, written 2 times"):
        segments_of("{{ messages[0].content }}{{ messages[0].content }}", "<image>", CONVERSATIONS["one"])


def test_a_system_message_with_an_image_where_no_system_message_has_a_place() -> None:
    """It goes to the user's message with its text."""
    source = LIKE_GEMMA3.replace("{{ bos_token }}", "{% if messages[0].role == 'system' %}"
                                 "{{ raise_exception('no system') }}{% endif %}")  # fmt: skip
    messages = [
        {"role": "system", "content": "See", "images": [OWL]},
        {"role": "user", "content": "Hm", "images": [CAT]},
    ]
    segments = segments_of(source, "<start_of_image>", messages)
    assert [segment for segment in segments if isinstance(segment, Media)] == [OWL, CAT]


PARTS = st.lists(
    st.one_of(st.sampled_from([CAT, DOG, OWL]), st.sampled_from(["a", "<image>", "[IMG]", " b\n", "<start_of_image>"])),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=scaled(1_000, quick=60))
@given(st.lists(PARTS, min_size=1, max_size=5), st.sampled_from(list(OWN)))
def test_random_conversations(contents: list[list[Any]], family: str) -> None:
    source, placeholder = OWN[family]
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    segments = segments_of(source, placeholder, messages)
    found = [segment for segment in segments if isinstance(segment, Media)]
    assert found == [part for content in contents for part in content if isinstance(part, Media)]
