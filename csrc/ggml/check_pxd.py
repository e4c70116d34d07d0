"""Hold a Cython declaration file against the C headers that it declares: `check_pxd.py INCLUDE_DIR PXD...`.

Cython believes what a .pxd says; a wrong argument type or a vanished function shows at the next bump of ggml as a
compiler warning at best. This reads both with regular expressions (ggml's headers are plain C) and prints every
declaration that the headers do not have in just that form. Needs nothing but the standard library.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Signature = tuple[str, ...]
"""Type of the result, then those of the arguments."""


@dataclass
class Declarations:
    """What a header declares, or a .pxd says that it does."""

    functions: dict[str, Signature] = field(default_factory=dict)
    pointers: dict[str, Signature] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    enums: dict[str, set[str]] = field(default_factory=dict)
    structs: dict[str, dict[str, str]] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)


# -- types -------------------------------------------------------------------------------------------------------------


def plain_type(text: str) -> str:
    """A type without its optional words and spaces: "const struct a  * const" -> "const a*const"."""
    text = re.sub(r"\b(struct|enum|GGML_RESTRICT)\s+", "", text)
    text = re.sub(r"\bbint\b", "bool", text)
    return re.sub(r"\s*\*\s*", "*", " ".join(text.split())).strip()


def without_name(parameter: str) -> str:
    """The type of "const char * name" or "int64_t ne[4]"; an unnamed parameter is its type."""
    parameter = re.sub(r"\[[^]]*\]", "", parameter)
    words = plain_type(parameter)
    match = re.fullmatch(r"(.*[\w*])[ *]?(?<=[ *])(\w+)", words)
    if match and match[2] not in TYPE_WORDS and match[1] not in ("const",):
        return match[1].strip()
    return words


TYPE_WORDS = {"int", "char", "void", "bool", "float", "double", "size_t", "unsigned", "long"}


def signature(result: str, parameters: str) -> Signature:
    listed = [p for p in split_parameters(parameters) if p.strip() not in ("", "void")]
    return (plain_type(result), *(without_name(p) for p in listed))


def split_parameters(text: str) -> list[str]:
    """At the commas outside of parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


# -- C headers ---------------------------------------------------------------------------------------------------------


def read_header(text: str) -> Declarations:
    found = Declarations()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    for name, value in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+)$", text, flags=re.MULTILINE):
        found.constants[name] = value.strip()
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"GGML_DEPRECATED\(\s*(.*?),\s*\"[^\"]*\"\s*\)\s*;", r"\1;", text, flags=re.DOTALL)
    for name, body in re.findall(r"\benum\s+(\w+)\s*\{([^}]*)\}", text):
        found.enums[name] = set(re.findall(r"(?:^|,)\s*(\w+)", body))
    for name, body in re.findall(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}", text):
        found.structs[name] = read_fields(body, found.constants)
    for name in re.findall(r"\bstruct\s+(\w+)", text):
        found.structs.setdefault(name, {})
    for result, name, parameters in re.findall(
        r"\btypedef\s+([^;{}()]+?)\(\s*\*\s*(\w+)\s*\)\s*\(([^;]*?)\)\s*;", text
    ):
        found.pointers[name] = signature(result, parameters)
    for kind, name in re.findall(r"\btypedef\s+([^;{}()]+?)\b(\w+)\s*;", text):
        found.aliases[name] = plain_type(kind)
    for result, name, parameters in re.findall(
        r"\b(?:GGML_API|GGML_BACKEND_API)\s+([^;{}()]+?)\b(\w+)\s*\(([^;{}]*?)\)\s*(?:GGML_ATTR\w*\([^)]*\))?;", text
    ):
        found.functions[name] = signature(result, parameters)
    return found


def read_fields(body: str, constants: dict[str, str]) -> dict[str, str]:
    fields = {}
    for declaration in body.split(";"):
        match = re.fullmatch(r"\s*([^()]+?)\b(\w+)\s*((?:\[[^]]*\])?)\s*", declaration, flags=re.DOTALL)
        if match:
            fields[match[2]] = plain_type(match[1]) + resolve(match[3], constants)
    return fields


def resolve(dimension: str, constants: dict[str, str]) -> str:
    """The number that a constant stands for: "[GGML_MAX_DIMS]" becomes "[4]"."""
    return re.sub(r"[A-Za-z_]\w*", lambda m: constants.get(m[0], m[0]), dimension.replace(" ", ""))


# -- Cython ------------------------------------------------------------------------------------------------------------


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(indentation, line) without comments, continued lines joined."""
    waiting = ""
    for raw in text.splitlines():
        line = re.sub(r"#.*", "", raw).rstrip()
        if not line:
            continue
        waiting = f"{waiting} {line.strip()}" if waiting else line
        if waiting.count("(") <= waiting.count(")"):
            yield len(waiting) - len(waiting.lstrip()), waiting.strip()
            waiting = ""


def read_pxd(text: str) -> Declarations:
    """The declarations of all `cdef extern from` blocks, and pointers to functions whose name stands behind them."""
    found = Declarations()
    for result, parameters, name in re.findall(r"^ctypedef +(.+?)\(\*\w+\)\((.*)\)[^#\n]*# (\w+)$", text, re.MULTILINE):
        found.functions[name] = signature(result, parameters)
    inside, body = False, None
    for indent, line in logical_lines(text):
        if indent == 0:
            inside, body = line.startswith("cdef extern from"), None
        elif inside and indent > 4 and body is not None:
            read_member(found, body, line)
        elif inside:
            body = read_declaration(found, line)
    return found


def read_declaration(found: Declarations, line: str) -> tuple[str, str] | None:
    """Add one declaration; a struct or an enum is returned as (kind, name), for its members follow."""
    opened = re.fullmatch(r"(struct|enum)\s+(\w+):", line)
    if opened and opened[1] == "struct":
        found.structs.setdefault(opened[2], {})
    elif opened:
        found.enums.setdefault(opened[2], set())
    if opened:
        return opened[1], opened[2]
    pointer = re.fullmatch(r"ctypedef\s+(.+?)\(\*(\w+)\)\((.*)\)\s*(?:noexcept)?", line)
    function = re.fullmatch(r"(.+?[\s*])(\w+)\s*(?:\"(\w+)\"\s*)?\((.*)\)\s*(?:except.*|noexcept.*)?", line)
    alias = re.fullmatch(r"ctypedef\s+(.+?)(\w+)", line)
    constant = re.fullmatch(r"int\s+(\w+)", line)
    if pointer:
        found.pointers[pointer[2]] = signature(pointer[1], pointer[3])
    elif alias:
        found.aliases[alias[2]] = plain_type(alias[1])
    elif constant:
        found.constants[constant[1]] = ""
    elif function:
        found.functions[function[3] or function[2]] = signature(function[1], function[4])
    else:
        raise SyntaxError(f"not understood: {line}")
    return None


def read_member(found: Declarations, body: tuple[str, str], line: str) -> None:
    kind, name = body
    if line == "pass":
        return
    if kind == "enum":
        found.enums[name].update(re.findall(r"\w+", line))
        return
    match = re.fullmatch(r"(.+?)\b(\w+)((?:\[\d+\])?)\s*(?:\"(\w+)\")?", line)
    if match is None:
        raise SyntaxError(f"not understood: {line}")
    found.structs[name][match[4] or match[2]] = plain_type(match[1]) + match[3]


# -- the comparison ----------------------------------------------------------------------------------------------------


def differences(said: Declarations, header: Declarations) -> list[str]:
    """Everything that is said and not so."""
    wrong = []
    for kind, mine, theirs in (
        ("function", said.functions, header.functions),
        ("function pointer", said.pointers, header.pointers),
        ("alias", said.aliases, header.aliases),
    ):
        for name, declared in mine.items():
            actual = theirs.get(name)
            if actual != declared:
                wrong.append(f"{kind} {name}: declared as {declared}, the headers have {actual}")
    for name, members in said.enums.items():
        missing = members - header.enums.get(name, set())
        if name not in header.enums or missing:
            wrong.append(f"enum {name}: the headers lack {', '.join(sorted(missing)) or name}")
    for name, fields in said.structs.items():
        if name not in header.structs:
            wrong.append(f"struct {name}: the headers lack it")
        for key, kind in fields.items():
            actual = header.structs.get(name, {}).get(key)
            if actual != kind:
                wrong.append(f"struct {name}.{key}: declared as {kind}, the headers have {actual}")
    wrong += [f"constant {name}: the headers lack it" for name in said.constants if name not in header.constants]
    return wrong


def check(include: Path, pxd: Path) -> list[str]:
    """Differences between a .pxd and all headers of a folder."""
    text = pxd.read_text(encoding="utf-8")
    headers = sorted(include.glob("*.h"))
    # Typedefs and constants of one header serve the others.
    joined = "\n".join(h.read_text(encoding="utf-8") for h in headers)
    said = read_pxd(text)
    if not said.functions:
        return [f"{pxd.name}: no function is declared, or none was understood"]
    return [f"{pxd.name}: {line}" for line in differences(said, read_header(joined))]


def main(include: str, *files: str) -> int:
    wrong = [line for name in files for line in check(Path(include), Path(name))]
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
