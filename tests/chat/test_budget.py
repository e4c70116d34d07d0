"""No template takes long, or fills the memory, whatever it does: its rendering has a budget."""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.chat.budget import CHARACTERS, checked_by
from ollama_engine.chat.template import ChatTemplate
from ollama_engine.chat.template_form import form_of
from ollama_engine.errors import ChatError, DeadlineError
from ollama_engine.runner.chat.preparation import ChatPreparation

BIG = "{% set big = 'ab' * 8000000 %}"
LISTS = "{% set ns = namespace(l=['ab'], m=['ab']) %}{% for i in range(60) %}"

ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop with a test": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "a macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for a in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 60 }}{% endfor %}",
    "filters": "{% for a in range(99999) %}{{ range(99999) | select | map('abs') | sum }}{% endfor %}",
    "a test of filters": "{% for a in range(99999) %}{{ range(99999) | select('eq', a) | first }}{% endfor %}",
    "sum of lists": "{{ ([[1] * 1000] * 100000) | sum(start=[]) | length }}",
    "+ of texts": "{% set ns = namespace(l='ab') %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "~ of texts": "{% set ns = namespace(l='ab') %}{% for i in range(60) %}{% set ns.l = ns.l ~ ns.l %}{% endfor %}",
    "+ of lists": LISTS + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "wordwrap by a text": "{{ ('a ' * 4000) | wordwrap(1, wrapstring='x' * 1000000) | length }}",
    "indent by a text": "{{ ('a\\n' * 4000) | indent('x' * 1000000) | length }}",
    "urlize with a text": "{{ ('www.a.de ' * 4000) | urlize(target='x' * 1000000) | length }}",
    "escape": "{{ ('&' * 30000000) | escape | length }}",
    "splitlines": "{% for a in range(99999) %}{{ ('a\\n' * 100000).splitlines() | length }}{% endfor %}",
    "*": "{% set ns = namespace(l=['ab']) %}{% for i in range(60) %}{% set ns.l = ns.l * 2 %}{% endfor %}",
    "* of numbers": "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "output": BIG + "{% for i in range(999) %}{{ big }}{% endfor %}",
    "a set block": BIG + "{% set x %}{% for i in range(999) %}{{ big }}{% endfor %}{% endset %}",
    "join": BIG + "{{ ([big] * 9999) | join }}",
    "join by a text": BIG + "{{ range(9999) | join(big) }}",
    "join, the method": BIG + "{{ big.join(['a'] * 9999) }}",
    "replace": BIG + "{{ big | replace('a', big) }}",
    "replace by name": BIG + "{{ big | replace(old='a', new=big) }}",
    "replace, the method": BIG + "{{ big.replace('a', big) }}",
    "%": BIG + "{{ ('%s' * 9999) % ((big,) * 9999) }}",
    "format": BIG + "{{ '%s%s%s%s%s%s' | format(big, big, big, big, big, big) }}",
    "format, the method": BIG + "{{ ('{0}' * 9999).format(big) }}",
    "expandtabs": "{{ ('\t' * 1000000).expandtabs(1000000) }}",
    "replace, in a text": BIG + "{{ big.replace('a', 'b') | length }}",
    "copies of a text": "{% set x = ('a' ~ messages[0].content) * 9000000 %}",
    "translate": BIG + "{{ big.translate({97: big}) }}",
    "looks at a text": BIG + "{% for i in range(99999) %}{{ big.count('c') }}{% endfor %}",
    "looks for a text": BIG + "{% for i in range(99999) %}{{ 'c' in big }}{% endfor %}",
    "slices": BIG + "{% for i in range(99999) %}{% set x = big[1:] %}{% endfor %}",
    "a list of lists": LISTS + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "tuples": LISTS + "{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ ns.l | string }}",
    "dicts": LISTS + "{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l | tojson }}",
    "dict": LISTS + "{% set ns.l = dict(a=ns.l, b=ns.l) %}{% endfor %}{{ ns.l ~ 'x' }}",
    "fromkeys": LISTS + "{% set ns.l = dict.fromkeys('ab', ns.l) %}{% endfor %}{{ ns.l }}",
    "namespaces": LISTS + "{% set ns.l = namespace(a=ns.l, b=ns.l) %}{% endfor %}{{ ns.l }}",
    "batches": LISTS + "{% set ns.l = (ns.l + ns.l) | batch(2) | list %}{% endfor %}{{ ns.l }}",
    "equal lists": LISTS + "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
    "a list of large texts": BIG + "{% set l = [big] * 99999 %}{{ l }}",
    "constants": "{{ ('a' | center(60000000)) | replace('a', 'a' | center(60000000)) }}",
    "lipsum": "{{ lipsum(n=99999) }}",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_what_would_not_end_is_refused_soon(name: str) -> None:
    """In less than a second on a quiet machine; the limit here is for busy ones."""
    began = time.thread_time()
    with pytest.raises(ChatError, match=r"too many steps|far more text|at once|'lipsum' is undefined"):
        ChatTemplate(ENDLESS[name]).render([{"role": "user", "content": "x"}])
    assert time.thread_time() - began < 10


@pytest.mark.parametrize("name", ["+ of texts", "+ of lists", "replace", "output", "a list of lists", "join by a text"])
def test_it_takes_little_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ChatError):
            ChatTemplate(ENDLESS[name]).render([{"role": "user", "content": "x"}])
        assert tracemalloc.get_traced_memory()[1] < 6 * CHARACTERS
    finally:
        tracemalloc.stop()


def test_a_long_conversation_has_a_larger_budget() -> None:
    """Templates that build their text by `+`, and look at all messages for each."""
    source = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% if messages[loop.index0:] | length %}"
        "{% set ns.t = ns.t + m.role + ': ' + (m.content | trim | replace('\\r', '')) + '\n' %}{% endif %}{% endfor %}"
        "{{ ns.t }}"
    )
    messages = [{"role": "user", "content": f"word {number} " * 20} for number in range(500)]
    text = ChatTemplate(source).render(messages)
    assert text == "".join(f"user: {message['content'].strip()}\n" for message in messages)
    long = [{"role": "user", "content": "x" * CHARACTERS}]
    assert len(ChatTemplate(source).render(long)) == len("user: \n") + CHARACTERS


def test_a_check_ends_a_rendering_and_the_probing_before_it() -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) > 3:
            raise DeadlineError("late")

    template = ChatTemplate(ENDLESS["loops"])
    for work in (lambda: template.render([{"role": "user", "content": "x"}]), lambda: form_of(template)):
        calls.clear()
        with pytest.raises(DeadlineError):
            checked_by(check, work)
        assert len(calls) == 4


def test_the_first_rendering_of_a_template_leaves_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled, and tried out, in a thread; the ones that follow are short, and so are a thread's costs saved."""
    threads: list[bool] = []
    prepare = ChatPreparation.prepare

    def noted(self: ChatPreparation, *arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return prepare(self, *arguments, **options)

    monkeypatch.setattr(ChatPreparation, "prepare", noted)
    params = SamplingParams(max_tokens=1, temperature=0)
    with Engine(demo.path(), num_ctx=256, threads=1) as engine:
        for template in (None, None, "{{ messages[0].content }}", None):
            asyncio.run(engine.achat([{"role": "user", "content": "x"}], params, template=template))
        with pytest.raises(DeadlineError):
            engine.chat([{"role": "user", "content": "x"}], params, template=ENDLESS["loops"], timeout=0.01)
    assert threads == [False, True, False, True, True]
