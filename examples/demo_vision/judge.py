"""Judges a file by fresh pictures, through the engine: `python -m demo_vision.judge FILE.gguf`, from `examples/`.

For pictures of each kind it prints how many descriptions are right in every word, and what was said instead of others.
Pictures that training draws have numbers from ten million on, those of `held_out.py` begin with 0. So `--first` is
between, and another one for each file: a file that was chosen by some pictures is judged by others.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from PIL import Image

from ollama_engine import Engine, SamplingParams

from .draw import picture
from .pillow import as_jpeg, one_by_pillow
from .plain import alone
from .questions import DESCRIBE, describe
from .scene import Scene

Shown = tuple[Scene, Image.Image]
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


def jpeg(show: Callable[[int], Shown], number: int) -> Shown:
    scene, image = show(number)
    return scene, as_jpeg(image)


KINDS: dict[str, Callable[[int], Shown]] = {
    "one": one_drawn,
    "one, as JPEG": partial(jpeg, one_drawn),
    "one, by Pillow": one_by_pillow,
    "one, by Pillow, as JPEG": partial(jpeg, one_by_pillow),
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
