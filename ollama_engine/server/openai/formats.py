"""The form of an answer, as OpenAI's API asks for it, and as the servers do that took it over."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ollama_engine.sample.constraints.formats import GBNF, Choice, Lark, Regex
from ollama_engine.server.errors import ApiError
from ollama_engine.server.requests.schemas import Schema

__all__ = ["FormatFields", "JsonSchema", "ResponseFormat", "answer_format"]

SchemaText = dict[str, Any] | str


class JsonSchema(Schema):
    """A JSON schema with a name."""

    name: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(Schema):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Schema):
    """vLLM's forms, of which a request has one."""

    json_schema: SchemaText | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class FormatFields(Schema):
    """Fields that ask for a form: OpenAI's, vLLM's from 0.12 on and before, SGLang's and llama.cpp's."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's forms")
    guided_json: SchemaText | None = Field(None, description="vLLM's older name of a JSON schema")
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    regex: str | None = Field(None, description="SGLang's name of a regular expression")
    ebnf: str | None = Field(None, description="SGLang's name of a grammar")
    json_schema: SchemaText | None = Field(None, description="llama.cpp's and SGLang's name of a JSON schema")
    grammar: str | None = Field(None, description="llama.cpp's name of a grammar")

    def wanted_format(self) -> Any:
        """The engine's `format`; None where the answer is free. Raises ApiError for several forms."""
        inner = self.structured_outputs or StructuredOutputs(json=None)
        forms = {
            "response_format": answer_format(self.response_format),
            "structured_outputs.json": inner.json_schema,
            "structured_outputs.regex": _regex(inner.regex),
            "structured_outputs.choice": _choice(inner.choice),
            "structured_outputs.grammar": _grammar(inner.grammar),
            "structured_outputs.json_object": "json" if inner.json_object else None,
            "guided_json": self.guided_json,
            "guided_regex": _regex(self.guided_regex),
            "guided_choice": _choice(self.guided_choice),
            "guided_grammar": _grammar(self.guided_grammar),
            "regex": _regex(self.regex),
            "ebnf": _grammar(self.ebnf),
            "json_schema": self.json_schema,
            "grammar": _grammar(self.grammar),
        }
        named = {name: form for name, form in forms.items() if form is not None}
        if len(named) > 1:
            one, other, *_ = named
            raise ApiError(400, f"{one} and {other}: an answer has one form; leave one of them out", param=other)
        return next(iter(named.values()), None)


def answer_format(response_format: ResponseFormat | None, param: str = "response_format.json_schema.schema") -> Any:
    """The engine's `format`. Raises ApiError for a schema that is missing; `param` is where it should be."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return "json"
    if response_format.json_schema is None or response_format.json_schema.json_schema is None:
        raise ApiError(400, f"{param}: expected a JSON schema, got none", param=param)
    return response_format.json_schema.json_schema


def _regex(pattern: str | None) -> Regex | None:
    return None if pattern is None else Regex(pattern)


def _choice(choices: list[str] | None) -> Choice | None:
    return None if choices is None else Choice(choices)


def _grammar(text: str | None) -> GBNF | Lark | None:
    """GBNF's rules have this sign, and Lark's have not; vLLM tells them apart alike."""
    if not text:
        return None
    return GBNF(text) if "::=" in text else Lark(text)
