"""One word for one thing: the name of a public class is defined once in the package."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.house.each_file import ROOT, text_of

PACKAGE = ROOT / "ollama_engine"
CLASS = re.compile(r"^(?:cdef )?class ([A-Z]\w*)", re.MULTILINE)
OF_OTHERS = re.compile(r"schemas\.py$|^models/")
"""Bodies of requests are named as each API names them, and every model has its Attention."""
KNOWN = {
    "Embedding": "a result of Engine.embed, and torch's name of the layer",
}


def test_a_public_class_name_is_defined_once() -> None:
    homes = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py*")):
        home = path.relative_to(PACKAGE).as_posix()
        if path.suffix in (".py", ".pyx") and not OF_OTHERS.search(home):
            for name in CLASS.findall(text_of(path)):
                homes[name].append(home)
    twice = {name: found for name, found in homes.items() if len(found) > 1 and name not in KNOWN}
    assert not twice, "a reader who searches for a class finds one: give the others the name of what they are"
    assert set(KNOWN) <= set(homes)
