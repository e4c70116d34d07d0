"""What pyright says of a user's program: the Python blocks of README.md and docs/ that use ollama_engine, `make types`.

In strict mode, so a name of ours whose type is not known is an error; but functions in the blocks need no annotations.
Blocks lie in build/types, one file each; those of a page whose blocks follow each other are one file.

Then the names that `ollama_engine` itself has, with all that their classes have: each parameter's type must be known to
whoever installs the package, also those that no block passes.
"""

from __future__ import annotations

import ast
import json
import os
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
    status = subprocess.run(command, check=False).returncode
    untyped = untyped_names()
    print(f"{len(untyped)} public names whose types are not known", *untyped, sep="\n  ")
    sys.exit(status or bool(untyped))


def untyped_names() -> list[str]:
    """Public names of which a type is not known, and what pyright says of what they consist of."""
    command = [sys.executable, "-m", "pyright", "--verifytypes", "ollama_engine", "--ignoreexternal", "--outputjson"]
    # This option looks for packages where the first Python on PATH does, and finds no editable installation.
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=FOLDER)
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    unknown = [symbol for symbol in symbols if not symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]]
    public = [symbol["name"] for symbol in unknown if symbol["name"].count(".") == 1]
    reasons = [f"{symbol['name']}: {told['message']}" for symbol in unknown for told in symbol["diagnostics"]]
    if not any(symbol["name"] == "ollama_engine.Engine" for symbol in symbols):
        return ["ollama_engine.Engine is not among the names that pyright finds"]
    return [*public, *reasons] if public else []


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
