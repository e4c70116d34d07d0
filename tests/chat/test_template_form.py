"""Messages reach each template in the form that it takes, and nothing of them gets lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ollama_engine.chat.conversation import render_conversation
from ollama_engine.chat.messages import read_messages
from ollama_engine.chat.template import ChatTemplate
from ollama_engine.chat.template_form import TemplateForm, form_of
from ollama_engine.chat.thinking import thinking_variables
from ollama_engine.errors import ChatError, ConfigError
from tests.chat.conversations import CLOCK, NOW, SYSTEM, TOKENS, assistant, call, result, user
from tests.chat.make_template_goldens import apply
from tests.chat.real_templates import sources
from tests.chat.test_injection import NAMES, QUICK
from tests.support.suite import slow_except

LOOP = "{% for m in messages %}[{{ m.role }}]"
BY_ARGUMENTS = (
    LOOP + "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}ARGUMENTS{% endfor %}{% endfor %}"
)

FORMS: dict[str, tuple[str, TemplateForm]] = {
    "objects": (BY_ARGUMENTS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}"), TemplateForm()),
    "texts": (BY_ARGUMENTS.replace("ARGUMENTS", "{{ '' + c.function.arguments }}"),
              TemplateForm(arguments_as_text=True)),
    "Python's spelling": (BY_ARGUMENTS.replace("ARGUMENTS", "{{ c.function.arguments }}"),
                          TemplateForm(arguments_as_text=True)),
    "no calls": (LOOP + "{{ m.content }}{% endfor %}", TemplateForm(no_content="empty", writes_calls=False)),
    "empty content": (BY_ARGUMENTS.replace("ARGUMENTS", "{{ m.content + c.function.arguments.items() | list | string "
                                           "| replace(\"'\", '') }}"), TemplateForm(no_content="empty")),
    "none": (LOOP + "{% if m.content is none %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}"
             "{% endfor %}",
             TemplateForm(no_content="none")),
    "parts": (LOOP + "{% for p in m.content %}{{ p.text }}{% endfor %}{{ m.tool_calls | default('') | tojson }}"
              "{% endfor %}",
              TemplateForm(parts=True)),
    "no system": ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + LOOP
                  + "{{ m.content }}{% endfor %}",
                  TemplateForm(no_content="empty", writes_calls=False, takes_system=False)),
    "no results": (LOOP + "{% if m.role != 'tool' %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}"
                   "{% endif %}{% endfor %}", TemplateForm(writes_results=False)),
    "developer": (LOOP.replace("[", "[{# developer #}") + "{{ m.content }}{% endfor %}",
                  TemplateForm(no_content="empty", writes_calls=False, knows_developer=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    source, wanted = FORMS[name]
    template = ChatTemplate(source)
    assert form_of(template) == wanted
    messages = read_messages([
        {"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": None, "tool_calls": [call(arguments='{"city":  "Paris"}')]},
        {"role": "tool", "tool_call_id": "abcdef123", "content": "sunny"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ])  # fmt: skip
    text = render_conversation(template, messages)
    for said in ("Be kind.", "Hello", "get_weather", "city", "Paris", "sunny", "ab"):
        assert said in text
    assert "{'city'" not in text
    assert ("[developer]" in text) == (name == "developer")


def test_a_system_message_without_a_place() -> None:
    template = ChatTemplate(FORMS["no system"][0])
    text = render_conversation(template, read_messages([SYSTEM, user("Hello"), assistant("Hi"), user("x")]))
    assert text == "[user]You are kind.\n\nHello[assistant]Hi[user]x"
    with pytest.raises(ChatError, match="no user's message follows it"):
        render_conversation(template, read_messages([SYSTEM, assistant("Hi")]))


def test_what_is_moved_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        template = ChatTemplate(FORMS["no system"][0])
        render_conversation(template, read_messages([SYSTEM, user(), assistant("x", tool_calls=[call()])]))
    assert ["system message" in caplog.messages[0], "tool calls" in caplog.messages[1]] == [True, True]


REFUSE = {"fireworks-ai-llama-3-firefunction-v2": "functions", "llama-cpp-deepseek-r1": "generator"}


@pytest.mark.parametrize("name", slow_except(NAMES, *QUICK))
def test_published_templates_write_a_whole_conversation(name: str) -> None:
    template = ChatTemplate(sources()[name], TOKENS, lambda: NOW)
    messages = read_messages([
        SYSTEM, user("Hello"), assistant(None, tool_calls=[call(arguments='{"city": "Paris"}')]), result("sunny"),
        assistant("It is."), user("Good"),
    ])  # fmt: skip
    if name in REFUSE:
        with pytest.raises(ChatError, match=REFUSE[name]):
            render_conversation(template, messages, tools=[CLOCK], add_generation_prompt=True)
        return
    text = render_conversation(template, messages, tools=[CLOCK], add_generation_prompt=True)
    for said in ("You are kind.", "Hello", "get_weather", "Paris", "sunny", "It is.", "Good"):
        assert said in text
    assert "{'city'" not in text
    assert '\\"city' not in text


@pytest.mark.reference
@pytest.mark.parametrize("name", slow_except(NAMES, *QUICK))
def test_a_conversation_of_texts_is_that_of_transformers(name: str) -> None:
    """Without tool calls, forms change nothing."""
    pytest.importorskip("transformers")
    source = sources()[name]
    messages = [user("Hello"), assistant("Hi"), user("Good")]
    wanted = apply(source, {"messages": messages, "add_generation_prompt": True})
    template = ChatTemplate(source, TOKENS, lambda: NOW)
    if wanted is not None:
        assert render_conversation(template, read_messages(messages), add_generation_prompt=True) == wanted


THINKING: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen-Qwen3-0.6B": ("enable_thinking", {"on": {"enable_thinking": True}, "off": {"enable_thinking": False}}),
    "ibm-granite-granite-3.3-2B-Instruct": ("thinking", {"on": {"thinking": True}, "off": {"thinking": False}}),
    "ByteDance-Seed-OSS": ("thinking_budget", {"on": {}, "off": {"thinking_budget": 0}}),
}


@pytest.mark.parametrize("name", THINKING)
def test_switches(name: str) -> None:
    template = ChatTemplate(sources()[name], TOKENS, lambda: NOW)
    variable, wanted = THINKING[name]
    assert template.reads(variable)
    assert thinking_variables(template, None) == {}
    texts = {
        think: template.render([user()], add_generation_prompt=True, variables=thinking_variables(template, think))
        for think in (True, False)
    }
    assert texts[True] != texts[False]
    assert [thinking_variables(template, think) for think in (True, False)] == [wanted["on"], wanted["off"]]
    with pytest.raises(ChatError, match="no levels"):
        thinking_variables(template, "low")


def test_levels() -> None:
    template = ChatTemplate(sources()["openai-gpt-oss-120b"], TOKENS, lambda: NOW)
    for level in ("low", "medium", "high"):
        variables = thinking_variables(template, level)
        assert f"Reasoning: {level}" in template.render([user()], variables=variables)
    assert thinking_variables(template, True) == {}
    with pytest.raises(ChatError, match=r"always reasons; the chat template has levels \(low, medium, high\)"):
        thinking_variables(template, False)


def test_no_switch() -> None:
    plain, always = ChatTemplate("{{ messages }}"), ChatTemplate("{{ messages }}<think>")
    assert thinking_variables(plain, False) == thinking_variables(always, True) == {}
    with pytest.raises(ChatError, match="does not reason"):
        thinking_variables(plain, True)
    with pytest.raises(ChatError, match="always reasons"):
        thinking_variables(always, False)
    with pytest.raises(ConfigError, match="got 'much'"):
        thinking_variables(plain, "much")  # type: ignore[arg-type]


def test_of_several_ways_to_reason_the_first_that_the_template_has() -> None:
    def variables(source: str, *ways: Any) -> dict[str, Any]:
        return thinking_variables(ChatTemplate(source, TOKENS, lambda: NOW), ways)

    switch = "{% if enable_thinking %}<think>{% endif %}"
    assert variables(switch, "high", True) == {"enable_thinking": True}
    assert variables(switch, False, None) == {"enable_thinking": False}
    assert variables("{{ messages }}<think>", False, None) == {}
    assert variables(switch) == {}
    with pytest.raises(ChatError, match="does not reason"):
        variables("{{ messages }}", "high", True)
    with pytest.raises(ConfigError, match="think is"):
        variables(switch, "a little", True)
