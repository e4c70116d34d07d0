"""Judges a file by fresh pictures, through the engine: `python -m demo_vision.judge FILE.gguf`, from `examples/`.

For pictures of each kind it prints how many descriptions are right in every word, and what was said instead of others.
Pictures that training draws have numbers from ten million on, those of `held_out.py` begin with 0. So `--first` is
between, and another one for each file: a file that was chosen by some pictures is judged by others.
"""

from __future__ import annotations

import argparse
import io
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from math import cos, pi, sin
from random import Random

from PIL import Image, ImageDraw

from ollama_engine import Engine, SamplingParams

from .draw import picture
from .plain import PURE, alone
from .questions import DESCRIBE, describe
from .scene import COLOURS, PLACES, SHAPES, Scene, Thing, pick

Shown = tuple[Scene, Image.Image]
GROUNDS = ("white", "black", "lightgrey", "grey", "beige", "navy", "pink")
SMOOTH = 4
"""Pictures that are drawn smoothly are so many times larger first."""
GREEDY = SamplingParams(temperature=0, max_tokens=64)


def one_drawn(number: int) -> Shown:
    """One shape, as in training."""
    scene, pixels = alone(number)
    return scene, Image.fromarray(pixels)


def several_drawn(number: int, *, n: int) -> Shown:
    """`n` shapes on any background, as in training."""
    number *= 40
    while len((drawn := picture(number))[0].things) != n:
        number += 1
    return drawn[0], Image.fromarray(drawn[1])


def one_by_pillow(number: int) -> Shown:
    """One shape that Pillow draws on a plain ground, smooth or not, of any size and proportions."""
    rng = Random(f"pillow {number}")
    shape, colour, place = pick(rng, SHAPES), pick(rng, COLOURS), int(rng.random() * len(PLACES))
    fill = tuple(map(round, pick(rng, PURE[colour])))
    ground = pick(rng, [name for name in GROUNDS if name != colour and (name, colour) != ("navy", "black")])
    width = 64 + int(rng.random() * 450)
    height = int(width * (0.7 + 0.6 * rng.random()))
    scale = SMOOTH if rng.random() < 0.5 else 1
    image = Image.new("RGB", (width * scale, height * scale), ground)
    x, y = ((place % 3) + 0.5) / 3 * image.width, ((place // 3) + 0.5) / 3 * image.height
    draw_shape(image, shape, fill, (x, y), min(image.size) * (0.1 + 0.06 * rng.random()))
    scene = Scene((Thing(shape, colour, place),))
    return scene, image if scale == 1 else image.resize((width, height), Image.Resampling.LANCZOS)


def draw_shape(
    image: Image.Image, shape: str, fill: tuple[int, ...], middle: tuple[float, float], radius: float
) -> None:
    """Put a shape on the picture by what Pillow has for it; a star's tips lie beyond the radius, as in `draw.py`."""
    pen, (x, y) = ImageDraw.Draw(image), middle

    def box(half: float, other: float) -> tuple[float, float, float, float]:
        return x - half, y - other, x + half, y + other

    if shape == "circle":
        pen.ellipse(box(radius, radius), fill=fill)
    elif shape == "ring":
        pen.ellipse(box(radius, radius), outline=fill, width=max(1, round(radius / 2)))
    elif shape == "square":
        pen.rectangle(box(radius * 0.85, radius * 0.85), fill=fill)
    elif shape == "cross":
        pen.rectangle(box(radius, radius * 0.3), fill=fill)
        pen.rectangle(box(radius * 0.3, radius), fill=fill)
    elif shape == "triangle":
        pen.polygon(
            [(x, y - radius), (x - radius * 0.87, y + radius * 0.5), (x + radius * 0.87, y + radius * 0.5)], fill=fill
        )
    else:
        tips = [(radius * 1.29 if k % 2 == 0 else radius * 0.49, (k * 36 - 90) * pi / 180) for k in range(10)]
        pen.polygon([(x + r * cos(turn), y + r * sin(turn)) for r, turn in tips], fill=fill)


def as_jpeg(shown: Shown, quality: int = 75) -> Shown:
    file = io.BytesIO()
    shown[1].save(file, "JPEG", quality=quality)
    return shown[0], Image.open(file)


KINDS: dict[str, Callable[[int], Shown]] = {
    "one": one_drawn,
    "one, as JPEG": lambda number: as_jpeg(one_drawn(number)),
    "one, by Pillow": one_by_pillow,
    "one, by Pillow, as JPEG": lambda number: as_jpeg(one_by_pillow(number)),
    "two": partial(several_drawn, n=2),
    "three": partial(several_drawn, n=3),
}


def main() -> None:
    """Print a line for each kind, and the wrong answers below it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":", maxsplit=1)[0])
    parser.add_argument("gguf", help="the file")
    parser.add_argument("--first", type=int, required=True, help="number of the first picture")
    parser.add_argument("--of", type=int, default=1000, help="pictures of each kind")
    args = parser.parse_args()
    with Engine(args.gguf, num_ctx=256, parallel=1) as engine:
        for kind, show in KINDS.items():
            wrong = judge(engine, map(show, range(args.first, args.first + args.of)))
            print(f"{kind}: {args.of - sum(wrong.values())} of {args.of} right", flush=True)
            for (answer, said), times in wrong.most_common():
                print(f"    {answer} | {said}" + (f" ({times} times)" if times > 1 else ""))


def judge(engine: Engine, shown: Iterable[Shown]) -> Counter[tuple[str, str]]:
    """How often which description was said instead of the right one."""
    wrong: Counter[tuple[str, str]] = Counter()
    for scene, image in shown:
        parts = [{"type": "image", "image": image}, {"type": "text", "text": DESCRIBE[0]}]
        said = engine.chat([{"role": "user", "content": parts}], GREEDY).message.content
        wrong.update([(describe(scene), said)] if said != describe(scene) else [])
    return wrong


if __name__ == "__main__":
    main()
