"""Write what llama.cpp guesses by EAGLE-3 heads: `python -m tests.models.make_eagle_peer_goldens PROGRAM`.

PROGRAM is `llama-speculative-simple`, a target of the pinned sources (`csrc/ggml/ggml.lock`; `bench/peer_tools.py` has
the options of their build). Its log says each guess.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.models.eagle_peers import AHEAD, FILE, HEADS, PARAMS, TEXT, PeerAnswer, files

GUESS = re.compile(r"draft candidate +0, pos +(\d+): +(\d+) ")
"""The likeliest candidate is the guess."""
BEHIND = re.compile(r"hist size = (\d+)")
"""Follows the guesses of a step: the tokens before the last one."""
TAKEN = re.compile(r"accepted (\d+)/\d+ draft tokens, the last target token is: \((\d+)\)")


def make(program: str, model: Path, head: Path) -> PeerAnswer:
    """Have llama.cpp answer, without a right guess: its log names the last token of each step only."""
    n = PARAMS.max_tokens or 0  # and some more, for the log may end before its last lines
    bans = ",".join(f"{token}-inf" for token in PARAMS.logit_bias)
    command: list[str | Path] = [
        program, "-m", model, "-md", head, "--spec-type", "draft-eagle3", "--spec-draft-n-max", str(AHEAD), "-p", TEXT,
        "-n", str(n + 20), "--temp", "0", "--top-k", "1", "-c", "256", "-t", "1", "-ctk", "f32",
        "-ctv", "f32", "-fa", "off", "--logit-bias", bans, "-lv", "5",
    ]  # fmt: skip
    log = subprocess.run(command, capture_output=True, check=True, timeout=60).stderr.decode(errors="replace")
    guesses: dict[int, int] = {}
    made = PeerAnswer(answer=[], guesses={})
    for line in log.splitlines():
        if found := GUESS.search(line):
            guesses[int(found[1])] = int(found[2])
        elif found := BEHIND.search(line):
            made["guesses"][str(int(found[1]) + 1)] = [guesses[i] for i in sorted(guesses)]
            guesses = {}
        elif found := TAKEN.search(line):
            if found[1] != "0":
                raise SystemExit("a guess was right: choose another text")
            made["answer"].append(int(found[2]))
    return PeerAnswer(answer=made["answer"][:n], guesses=dict(list(made["guesses"].items())[:n]))


def main(program: str) -> None:
    made = {}
    for name in HEADS:
        with tempfile.TemporaryDirectory() as folder:
            made[name] = make(program, *files(name, Path(folder)))
    FILE.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    print(FILE)


if __name__ == "__main__":
    main(sys.argv[1])
