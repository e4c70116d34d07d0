"""What pyright says of a user's program: the Python blocks of README.md and docs/ that use ollama_engine, `make types`.

In strict mode, so a name of ours whose type is not known is an error; but functions in the blocks need no annotations.
Blocks lie in build/types, one file each; those of a page whose blocks follow each other are one file.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "types"
PAGES = ("README.md", "docs/*.md")
JOINED = ("requests.md", "structured-output.md")
"""Pages whose blocks use names of earlier ones."""
RELAXED = ("MissingParameterType", "UnknownParameterType", "UnknownVariableType", "UnknownArgumentType", "UnusedImport",
           "UnusedVariable")  # fmt: skip


def main() -> None:
    """Write the blocks, check them; exits with pyright's code."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, text in programs():
        (FOLDER / f"{name}.py").write_text(text, encoding="utf-8")
    settings: dict[str, object] = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    settings |= {f"report{rule}": False for rule in RELAXED}
    config = FOLDER / "pyrightconfig.json"
    config.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(config)]
    sys.exit(subprocess.run(command, check=False).returncode)


def programs() -> Iterator[tuple[str, str]]:
    """A name and the text of each program."""
    for page in (path for pattern in PAGES for path in sorted(ROOT.glob(pattern))):
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        if page.name in JOINED:
            blocks = ["".join(blocks)]
        for number, block in enumerate(blocks):
            if "ollama_engine" in imported(block):  # else it is a fragment, or a client's program
                yield f"{page.stem}-{number}", block


def imported(text: str) -> set[str]:
    """The packages that a program imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


if __name__ == "__main__":
    main()
