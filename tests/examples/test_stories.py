"""The demo model's story generator: deterministic, varied, in good English, and honest about what it holds out."""

from __future__ import annotations

import re
from itertools import islice
from random import Random

import pytest
from demo_model.documents import SPECIAL_TOKENS, documents
from demo_model.grammar import expand, tidy
from demo_model.plots import PLOTS
from demo_model.stories import Story, make_story
from demo_model.tokens import train_tokenizer, weigh_tokens
from demo_model.world import ANIMALS, PEOPLE, THINGS, TRAITS, draw_character, held_out

from tests.support.suite import scaled

MANY = scaled(3000, quick=600)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(islice(documents(7), MANY))


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    rng = Random(11)
    return [make_story(rng) for _ in range(MANY)]


def test_same_seed_tells_the_same_documents(texts: list[str]) -> None:
    assert list(islice(documents(7), 50)) == texts[:50]
    assert list(islice(documents(8), 50)) != texts[:50]


def test_documents_differ_from_each_other(texts: list[str]) -> None:
    tales = [text for text in texts if len(text) > 600]
    assert len(tales) > 0.9 * MANY
    assert len(set(tales)) == len(tales)


def test_every_form_and_opening_occurs(texts: list[str]) -> None:
    for start in ("Once upon a time", "One ", "There was", "Long ago", "Tell a story about", "<|start_header_id|>user"):
        assert any(text.startswith(start) for text in texts), start
    assert any("\nQuestion: Who" in text and "\nAnswer: " in text for text in texts)


def test_every_plot_and_thing_occurs(stories: list[Story]) -> None:
    assert {story.plot for story in stories} == {plot.name for plot in PLOTS}
    assert {story.thing for story in stories} == set(THINGS)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\b[Aa] [aeiou]",
        r"\b[Aa]n [^aeiouh]",
        r"\b(?:a|an|the) (?:a|an|the)\b",
        r"\b(?!had )(\w+) \1\b",
        r"[\[\]{}¶]",
        r" [,.!?]| {2,}| \n|\n ",
        r"[.!?,][.!?,]",
        r"\bNone\b",
    ],
)
def test_bad_english_never_occurs(texts: list[str], pattern: str) -> None:
    found = [match[0] for text in texts for match in re.finditer(pattern, text)]
    assert not found, found[:5]


def test_sentences_begin_with_capitals(stories: list[Story]) -> None:
    for story in stories:
        for sentence in re.findall(r"(?:^|[.!] )(\w[^.!?]*)", story.text):
            assert sentence[0].isupper() or sentence[0].isdigit(), story.text


def test_quotation_marks_come_in_pairs(stories: list[Story]) -> None:
    for story in stories:
        assert all(part.count('"') % 2 == 0 for part in story.text.split("\n\n")), story.text


def test_hero_and_thing_persist(stories: list[Story]) -> None:
    for story in stories:
        about = dict(story.questions)["Who is the story about?"].rstrip(".")
        called = about.partition(" named ")[2] or story.hero
        half = len(story.text) // 2
        assert called in story.text[:half], story.text
        assert called in story.text[half:], story.text
        assert story.thing in story.text
    assert sum(story.text.count(story.thing) for story in stories) / MANY > 4


def test_a_kind_is_always_he_or_always_she() -> None:
    rng = Random(5)
    drawn = [draw_character(rng) for _ in range(MANY)]
    she, he = ({who.kind for who in drawn if who.female is female} for female in (True, False))
    assert not she & he
    assert she | he == {*ANIMALS, *PEOPLE}


def test_two_characters_never_share_a_pronoun_a_kind_or_a_name() -> None:
    rng = Random(6)
    for _ in range(MANY):
        hero = draw_character(rng)
        friend = draw_character(rng, apart_from=hero)
        assert hero.female is not friend.female
        assert (hero.kind, hero.call) != (friend.kind, friend.call)


def test_a_story_says_one_thing_of_its_heros_nature(stories: list[Story]) -> None:
    """A second word for it would have to agree with the first."""
    for story in stories:
        answers = [answer for question, answer in story.questions if question.startswith("What was ")]
        natures = [answer.rstrip(".").split(" was ")[1] for answer in answers if " was " in answer]
        assert sum(nature in TRAITS for nature in natures) == 1
        about = dict(story.questions)["Who is the story about?"]
        assert not set(TRAITS) & set(about.rstrip(".").split()), about


def test_tokens_of_words_that_matter_weigh_more() -> None:
    tokenizer = train_tokenizer(islice(documents(1), 300), 600)
    weights = weigh_tokens(tokenizer, ["fox", "she"], 3.0)
    heavy = {id_ for word in (" fox", " she") for id_ in tokenizer.encode(word).ids}
    assert [id_ for id_, weight in enumerate(weights) if weight != 1.0] == sorted(heavy)
    assert {weights[id_] for id_ in heavy} == {3.0}
    assert len(weights) == 600


def test_answers_speak_of_the_story(stories: list[Story]) -> None:
    for story in stories:
        for question, answer in story.questions:
            assert question.endswith("?")
            assert answer.endswith(".")
        about = dict(story.questions)["Who is the story about?"].removeprefix("The story is about ").rstrip(".")
        assert about in story.text


def test_special_tokens_are_whole(texts: list[str]) -> None:
    for text in texts:
        assert set(re.findall(r"<\|.*?\|>", text)) <= set(SPECIAL_TOKENS)
        assert text.count("<|start_header_id|>") == text.count("<|end_header_id|>") == text.count("<|eot_id|>")


def test_held_out_pairs_never_train(stories: list[Story]) -> None:
    assert not any(held_out(story.hero, story.thing) for story in stories)
    rng = Random(3)
    assert all(held_out(story.hero, story.thing) for story in (make_story(rng, held=True) for _ in range(200)))


def test_held_out_share_is_about_a_sixteenth() -> None:
    kinds = (*ANIMALS, *PEOPLE)
    pairs = [held_out(kind, thing) for kind in kinds for thing in THINGS]
    assert 0.04 < sum(pairs) / len(pairs) < 0.09


@pytest.mark.parametrize(
    ("template", "slots", "text"),
    [
        ("a {thing}", {"thing": "apple"}, "an apple"),
        ("A {thing}", {"thing": "unicorn"}, "A unicorn"),
        ("a {thing}", {"thing": "honest hour"}, "an honest hour"),
        ("{Who} [|] came .", {"who": "the fox"}, "The fox came."),
        ("{Moral}", {"moral": "[be kind]"}, "Be kind"),
        ("[[a]] {outer}", {"outer": "[{inner}]", "inner": "owl"}, "an owl"),
    ],
)
def test_templates_expand(template: str, slots: dict[str, str], text: str) -> None:
    assert expand(template, slots, Random(1)) == text


def test_missing_slot_raises() -> None:
    with pytest.raises(KeyError):
        expand("{nobody}", {}, Random(1))


def test_tidy_leaves_good_text_alone() -> None:
    text = 'An owl said, "A useful idea!"\n\nOne day, a fox came.'
    assert tidy(text) == text
