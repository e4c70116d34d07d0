"""PrefixTable: prompts go where their prefix is, as long as nobody has too much to do."""

from __future__ import annotations

import random
from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.ray.prefix_table import BALANCE, PrefixTable
from ollama_engine.ray.prompt_chain import prompt_chain

NAMES = ("a", "b", "c")


def idle(*names: str) -> dict[str, int]:
    return dict.fromkeys(names or NAMES, 0)


def test_a_prompt_goes_where_most_of_it_is() -> None:
    table = PrefixTable()
    table.remember([b"1"], "a")
    table.remember([b"1", b"2"], "b")
    assert table.matches([b"1", b"2", b"3"]) == {"a": 1, "b": 2}
    assert table.ranked([b"1", b"2", b"3"], idle())[:2] == ["b", "a"]


def test_unknown_prompts_go_to_who_has_least_to_do() -> None:
    assert PrefixTable().ranked([b"1"], {"a": 2, "b": 1, "c": 3}) == ["b", "a", "c"]


def test_routers_that_know_nothing_agree() -> None:
    for number in range(50):
        chain = [str(number).encode()]
        assert PrefixTable().ranked(chain, idle()) == PrefixTable().ranked(chain, idle(*reversed(NAMES)))
    first = Counter(PrefixTable().ranked([str(number).encode()], idle())[0] for number in range(300))
    assert min(first.values()) > 50


def test_a_replica_that_is_gone_is_forgotten() -> None:
    table = PrefixTable()
    table.remember([b"1"], "a")
    table.remember([b"1"], "b")
    table.keep_only({"b", "c"})
    assert table.matches([b"1"]) == {"b": 1}
    table.keep_only({"c"})
    assert table.matches([b"1"]) == {}


def test_what_was_used_least_recently_leaves_the_longest_beginnings_first() -> None:
    table = PrefixTable(capacity=3)
    table.remember([b"1", b"2"], "a")
    table.remember([b"1", b"3"], "a")
    table.remember([b"4"], "a")
    assert table.matches([b"1", b"2"]) == {"a": 1}
    assert table.matches([b"1", b"3"]) == {"a": 2}
    assert table.matches([b"4"]) == {"a": 1}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=200), st.integers(0, 4))
def test_no_replica_gets_more_than_its_share(requests: list[tuple[int, bool]], slack: int) -> None:
    """Whatever prompts come, and whichever requests end meanwhile."""
    table, running, order = PrefixTable(slack=slack), Counter(idle()), deque[str]()
    for prompt, ends in requests:
        if ends and order:
            running[order.popleft()] -= 1
        chain = [b"shared", str(prompt).encode()]
        name = table.ranked(chain, running)[0]
        table.remember(chain, name)
        assert running[name] < BALANCE * (sum(running.values()) + 1) / len(NAMES) + slack
        running[name] += 1
        order.append(name)


def test_conversations_hit_as_often_as_with_one_replica() -> None:
    """Blocks computed before, of 200 conversations with one of five system messages, 24 requests at a time."""
    assert hits(4) >= 0.9 * hits(1)


def hits(replicas: int) -> float:
    draw, table = random.Random(3), PrefixTable()
    names = [f"r{i}" for i in range(replicas)]
    computed: dict[str, set[bytes]] = {name: set() for name in names}
    running: Counter[str] = Counter(dict.fromkeys(names, 0))
    under_way: deque[str] = deque()
    found = total = 0
    turns = [chat for chat in range(200) for _ in range(6)]
    draw.shuffle(turns)
    so_far: Counter[int] = Counter()
    for chat in turns:
        so_far[chat] += 1
        system = {"role": "system", "content": f"You are {chat % 5}. " * 300}
        talk = [{"role": "user", "content": f"{chat} {turn} " * 100} for turn in range(so_far[chat])]
        chain = prompt_chain("m", [system, *talk], {})
        if len(under_way) == 24:
            running[under_way.popleft()] -= 1
        name = table.ranked(chain, running)[0]
        table.remember(chain, name)
        running[name] += 1
        under_way.append(name)
        found += sum(block in computed[name] for block in chain)
        total += len(chain)
        computed[name].update(chain)
    return found / total
