"""Tells one story: casts a plot, writes its text, and knows the answers to questions about it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .grammar import Slots, capital, expand
from .plots import BREAK, PASSAGES, PLOTS, Plot, Question
from .texts import Block
from .world import FOODS, JOY, PLACES, SAD, THINGS, Character, Place, Thing, draw_character, held_out

INTERLUDE_SHARE = 0.3
"""How often a pause to look around opens a new part of the story."""


@dataclass(frozen=True)
class Story:
    """A finished story with what is asked and told about it.

    `questions` holds (question, answer) pairs; `hero`, `thing` and `plot` are its coordinates; `summary` follows
    "a story about".
    """

    text: str
    title: str
    hero: str
    thing: str
    plot: str
    summary: str
    questions: tuple[tuple[str, str], ...]


def make_story(rng: Random, *, held: bool = False) -> Story:
    """Tell a story drawn from `rng`; `held` draws only (hero, thing) pairs that training never sees."""
    plot = rng.choice(PLOTS)
    things = plot.things or tuple(thing for thing in THINGS if thing not in FOODS)
    while True:
        hero, thing = draw_character(rng), THINGS[rng.choice(things)]
        if held_out(hero.kind, thing.noun) == held and hero.trait not in plot.not_traits:
            break
    friend = draw_character(rng, apart_from=hero)
    slots = slots_for(plot, hero, friend, thing, rng)
    told = (pair for pair in PASSAGES.questions if friend.named or "{f_who}" not in pair[1])
    return Story(
        text=_tell(plot, slots, rng),
        title=_title(hero, friend, thing, rng),
        hero=hero.kind,
        thing=thing.noun,
        plot=plot.name,
        summary=expand("{hero_np} who " + plot.summary, slots, rng),
        questions=tuple(_answer(pair, slots, rng) for pair in (*plot.questions, *told)),
    )


def slots_for(plot: Plot, hero: Character, friend: Character, thing: Thing, rng: Random) -> Slots:
    """The values templates may use.

    Hero: `hero he him his himself kind trait home hero_np hero_voc`; friend: `f fhe fhim fhis fhimself f_np f_who`;
    thing: `obj adj why`; places 1 and 2: `p at scene spot..a spot..b`; moods: `sad joy`; `moral`, and the plot's
    details.
    """
    first, second = rng.sample([place for place in PLACES if place.noun not in hero.home], 2)
    return {
        **dict(zip(("he", "him", "his", "himself"), hero.pronouns, strict=True)),
        **dict(zip(("fhe", "fhim", "fhis", "fhimself"), friend.pronouns, strict=True)),
        "hero": hero.call,
        "hero_np": hero.phrase,
        "hero_voc": hero.call if hero.named else f"dear {hero.kind}",
        "kind": hero.kind,
        "trait": hero.trait,
        "home": hero.home,
        "f": friend.call,
        "f_np": friend.phrase,
        "f_who": friend.phrase.split(" named ")[0],
        "obj": thing.noun,
        "adj": rng.choice(thing.adjectives),
        "why": thing.why,
        **_place_slots("1", first, rng),
        **_place_slots("2", second, rng),
        "sad": rng.choice(SAD),
        "joy": rng.choice(JOY),
        "moral": expand(plot.moral, {}, rng),
        **rng.choice(plot.details),
    }


def _place_slots(number: str, place: Place, rng: Random) -> dict[str, str]:
    spot, other = rng.sample(place.spots, 2)
    return {
        f"p{number}": f"the {place.noun}",
        f"at{number}": f"{place.at} the {place.noun}",
        f"scene{number}": place.scenes,
        f"spot{number}a": spot,
        f"spot{number}b": other,
    }


def _tell(plot: Plot, slots: Slots, rng: Random) -> str:
    opening = rng.choice(PASSAGES.openings)
    names_a_day = opening[0].startswith("One ")
    slots = {**slots, "oneday": PASSAGES.later if names_a_day else PASSAGES.day}
    beats: tuple[Block, ...] = (opening, PASSAGES.character, *plot.beats, PASSAGES.endings, PASSAGES.morals)
    paragraph = rng.choice(("\n\n", " "))
    pieces = []
    for beat in beats:
        template = rng.choice(beat)
        pieces.append(paragraph if beat is BREAK else expand(template, slots, rng))
        if beat is BREAK and rng.random() < INTERLUDE_SHARE:
            pieces.append(expand(rng.choice(PASSAGES.interludes), slots, rng))
    return _join([piece for piece in pieces if piece])


def _join(pieces: list[str]) -> str:
    text = ""
    for piece in pieces:
        between = "" if not text or text[-1].isspace() or piece.isspace() else " "
        text += between + piece
    return text


def _title(hero: Character, friend: Character, thing: Thing, rng: Random) -> str:
    name, other = (" ".join(capital(word) for word in who.call.split()) for who in (hero, friend))
    title = rng.choice(
        (
            f"The {capital(hero.kind)} and the {capital(thing.noun)}",
            f"{name} and the {capital(thing.noun)}",
            f"{name} and {other}",
            f"The {capital(thing.noun)}",
        )
    )
    return title.replace("and The ", "and the ")


def _answer(pair: Question, slots: Slots, rng: Random) -> tuple[str, str]:
    question, answer = pair
    return expand(question, slots, rng), expand(answer, slots, rng)
