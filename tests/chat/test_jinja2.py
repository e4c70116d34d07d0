"""jinja2: what ChatEnvironment overrides, and relies on, is as it was when that was written."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator

from jinja2 import compiler
from jinja2.compiler import CodeGenerator
from jinja2.environment import Environment
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ollama_engine.chat import sandbox

OURS = (sandbox.ChatEnvironment, sandbox._LiteralsTraced, sandbox._TemplateNamespace)
RELIED_ON = (
    CodeGenerator.visit_Output,  # joins neighbouring constants, and calls _output_const_repr with them
    CodeGenerator._output_child_to_const,
    CodeGenerator.macro_body,
    CodeGenerator.return_buffer_contents,  # what macros and blocks put out goes through `concat`
    CodeGenerator.visit_Template,
    compiler._make_binop,  # has `call_binop` called
    compiler.optimizeconst,
    Environment.from_string,
)
AS_OF_JINJA2_3_1_6 = {
    "SandboxedEnvironment.__init__": "1950b18c049c",
    "SandboxedEnvironment.call_binop": "393f399d5581",
    "SandboxedEnvironment.call": "dec31de35df6",
    "SandboxedEnvironment.wrap_str_format": "8b8bf2a9a0b9",
    "CodeGenerator.visit_Const": "cfba2c7d15d4",
    "CodeGenerator.visit_TemplateData": "3bd24263843d",
    "CodeGenerator.visit_List": "97239f1aebd3",
    "CodeGenerator.visit_Dict": "4324dcc090d2",
    "CodeGenerator.visit_Tuple": "c5283d6389fe",
    "CodeGenerator.visit_Concat": "be4721533d19",
    "CodeGenerator._output_const_repr": "b511f1cec961",
    "Namespace.__init__": "462f3c194978",
    "Namespace.__setitem__": "690660f129a3",
    "CodeGenerator.visit_Output": "c6adf91f7665",
    "CodeGenerator._output_child_to_const": "fcbb1f1cab1c",
    "CodeGenerator.macro_body": "3cee3c0c811a",
    "CodeGenerator.return_buffer_contents": "c7ff72b49140",
    "CodeGenerator.visit_Template": "c43af1aeb714",
    "_make_binop": "a643d24f0c39",
    "optimizeconst": "4a9d3f507e74",
    "Environment.from_string": "4bbae3bdb345",
}
"""The sources of jinja2 that were read, by the first digits of their SHA-256."""


def overridden() -> Iterator[tuple[str, object]]:
    """Functions of jinja2 that have another one in a class of ours."""
    for cls in OURS:
        for name in vars(cls):
            for base in cls.__mro__[1:]:
                function = vars(base).get(name)
                if inspect.isfunction(function) and base.__module__.startswith("jinja2"):
                    yield function.__qualname__, function
                    break


def digest(function: object) -> str:
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]  # type: ignore[arg-type]


def test_what_is_overridden_has_not_changed() -> None:
    """A function named here has changed: read it, adapt chat/sandbox.py, let tests/chat pass, and write its digest."""
    now = {name: digest(function) for name, function in overridden()}
    now |= {function.__qualname__: digest(function) for function in RELIED_ON}
    assert now == AS_OF_JINJA2_3_1_6


def test_classes_that_are_extended_are_where_they_were() -> None:
    assert issubclass(sandbox.ChatEnvironment, ImmutableSandboxedEnvironment)
    assert ImmutableSandboxedEnvironment.code_generator_class is CodeGenerator
    assert ImmutableSandboxedEnvironment.concat("ab") == "ab"
    assert Namespace({"a": 1}).a == 1
