"""`python -m tests.chat.go_template.make_go_goldens`: has Go write the cases; needs `go`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.chat.go_template.cases import DATA, FEATURES, random_source

HERE = Path(__file__).parent
GOLDENS = HERE / "goldens.json"
RANDOM = 600


def outcomes(sources: list[str]) -> list[dict[str, str]]:
    """The texts that Go's text/template makes of these sources, with DATA."""
    cases = json.dumps([{"Source": source, "Data": DATA} for source in sources])
    found = subprocess.run(
        ["go", "run", HERE / "reference.go"], input=cases, capture_output=True, text=True, check=True
    )
    made: list[dict[str, str]] = json.loads(found.stdout)
    return made


def main() -> None:
    sources = [*FEATURES, *map(random_source, range(RANDOM))]
    GOLDENS.write_text(json.dumps(outcomes(sources), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
