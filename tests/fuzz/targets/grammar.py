"""Sources of grammars: the first byte says whether the rest is GBNF, a JSON schema, a regular expression or Lark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ollama_engine.errors import ConfigError, GrammarError
from ollama_engine.sample.constraints.compiler import GrammarCompiler
from ollama_engine.sample.constraints.formats import GBNF, Lark, Regex
from ollama_engine.sample.constraints.matcher import GrammarConstraint
from ollama_engine.tokenizer import from_metadata
from tests.fuzz.targets.tokenizer import vocabularies

WORDS = (
    b"root ::= ", b"::=", b"\n", b" | ", b"[a-z]", b"[^\\x00-\\x1f]", b"\\u4e2d", b"{2,3}", b"{1,}", b"*", b"+", b"?",
    b"(", b")", b'"a"', b"# x", b'{"type": ', b'"object"', b'"array"', b'"string"', b'"integer"', b'"properties"',
    b'"required"', b'"items"', b'"enum"', b'"const"', b'"anyOf"', b'"oneOf"', b'"allOf"', b'"$ref"', b'"#/$defs/a"',
    b'"$defs"', b'"pattern"', b'"minimum"', b'"maxLength"', b'"additionalProperties"', b'"prefixItems"', b'"format"',
    b"start: ", b"%json ", b"%ignore", b"/[a-z]+/", b"(?i)", b"\\d", b"^", b"$", b"true", b"null", b"1e308",
)  # fmt: skip
GBNFS = (
    'root ::= "yes" | "no"',
    'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")" # nested\n',
    'root ::= [^"\\\\\\x00-\\x1f]{2,3} ws?\nws ::= ([ \\t\\n] ws)?',
    'root ::= number\nnumber ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?',
)
SCHEMAS: tuple[object, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", 1, None]}}},
    {"anyOf": [{"type": "string", "pattern": "^a+$", "maxLength": 5}, {"const": [1, {"x": True}]}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}}},
    {"type": ["object", "null"], "additionalProperties": {"type": "number"}, "required": ["k"]},
    {"type": "array", "prefixItems": [{"type": "boolean"}], "items": False},
)
OTHERS = (b"\2(a|b)*c{2,5}[^x]", b"\2(?i)hello \\w+\\.", b'\3start: a\na: "x" | %json {"type": "string"}')
STEPS = 12
EOS = 1


def seeds() -> Iterable[bytes]:
    yield from (b"\0" + source.encode() for source in GBNFS)
    yield from (b"\1" + json.dumps(schema).encode() for schema in SCHEMAS)
    yield from OTHERS


@contextmanager
def opened(folder: Path) -> Iterator[Callable[[bytes], bool]]:
    tokenizer = from_metadata({**vocabularies()["gpt-2"], "tokenizer.ggml.eos_token_id": EOS})

    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)

    def run(data: bytes) -> bool:
        text = data[1:].decode("utf-8", "replace")
        kind = data[0] % 4 if data else 0
        format_ = (GBNF, str, Regex, Lark)[kind](text)
        try:
            constraint = compiler.constraint(format_)
            _walk(constraint, data, tokenizer.n_vocab)
        except (ConfigError, GrammarError):
            return False
        return True

    yield run


def _walk(constraint: GrammarConstraint, choices: bytes, n_vocab: int) -> None:
    """Take tokens that the masks allow, as `choices` say, and what is forced."""
    for choice in choices[:STEPS]:
        if constraint.ended:
            return
        allowed = np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little"))
        assert len(allowed), "a mask that allows nothing"
        assert allowed[-1] < n_vocab
        token = int(allowed[choice % len(allowed)])
        if token == EOS:
            return
        constraint.accept(token)
