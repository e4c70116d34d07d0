"""The JSON schema of a Python type, as narrow as what pydantic reads back: a whole answer has to be an instance.

pydantic's own schemas allow any text for a Decimal, for most keys of a dict, and as scheme and host of an HttpUrl. Of a
set they ask for different items, which no grammar can; reading one drops items that come twice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pydantic import PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaValidator, ValidationError, core_schema

__all__ = ["narrow_schema"]

_DIGITS = 15
"""Of a Decimal: pydantic reads a number by way of a float, which has so many exactly."""
_PLACES = 6
"""Behind the point: llguidance does not take every smaller step."""
_KEYS_AS_NAMES = {
    "boolean": "true|false",
    "integer": "-?(0|[1-9][0-9]{0,14})",
    "number": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?",
}
"""Keys of a dict by their type: JSON has texts there."""
_NEVER_NAMES = frozenset({"null", "array", "object"})
_LABEL = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
"""Of a host. Two hyphens in a row may begin an encoded name ("xn--"), which few texts are."""
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_HOST = rf"(({_LABEL}\.)*[A-Za-z](-?[A-Za-z0-9])*|({_BYTE}\.){{3}}{_BYTE})"
"""A host whose last label begins with a digit is read as an IPv4 address, which it may not be."""
_USER = r"([A-Za-z0-9._~%!$&'()*+,;=-]+(:[A-Za-z0-9._~%!$&'()*+,;=:-]*)?@)?"
_PORT = "(:(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4}))?"
_MOST_OF_URL = 500
"""Characters where there is a limit: with pydantic's 2083 llguidance gives up ("too many expressions constructed")."""


def narrow_schema(given: Any) -> tuple[JsonSchemaValue, Callable[[str], object]]:
    """A type's schema, and what reads an instance of an answer. Raises TypeError where no schema can be made."""
    try:
        adapter = TypeAdapter(given)
        return adapter.json_schema(schema_generator=_NarrowSchema), adapter.validate_json
    except PydanticUserError as error:
        raise TypeError(str(error).splitlines()[0]) from None


class _NarrowSchema(GenerateJsonSchema):
    _definitions: tuple[core_schema.CoreSchema, ...] = ()

    def definitions_schema(self, schema: core_schema.DefinitionsSchema) -> JsonSchemaValue:
        """Keeps what the types of keys may refer to."""
        self._definitions += tuple(schema["definitions"])
        return super().definitions_schema(schema)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """A number without an exponent, with the digits that are asked for."""
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is None:
            return _decimals(schema, _DIGITS - min(places or 0, _PLACES), places)
        if places is not None:
            return _decimals(schema, digits - places, min(places, digits))
        # Each digit behind the point is one less before it.
        return {"anyOf": [_decimals(schema, digits - n, n) for n in range(min(digits, _PLACES) + 1)]}

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        """A list in which items may come twice, unless it must have several."""
        return _with_any_items(super().set_schema(schema))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        """See `set_schema`."""
        return _with_any_items(super().frozenset_schema(schema))

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """An object whose names can be read as keys."""
        made = super().dict_schema(schema)
        if "keys_schema" not in schema:
            return made
        if "patternProperties" in made:  # the keys have a pattern; pydantic's schema allows others beside them
            return made | {"additionalProperties": False}
        keys = self.generate_inner(schema["keys_schema"])
        rules = self._names(keys, schema["keys_schema"])
        if not rules:
            told = "names of a JSON object are texts, and pydantic reads none as a key of the dict, which is {}"
            raise PydanticUserError(told.format(json.dumps(keys)), code=None)
        if rules == [keys] or any(set(rule) <= {"type", "title", "description"} for rule in rules):
            return made
        return made | {"propertyNames": _either(rules)}

    def _names(self, keys: JsonSchemaValue, schema: core_schema.CoreSchema) -> list[JsonSchemaValue]:
        """Schemas of names that are read as such keys: one for each kind of key that can be a name."""
        if "$ref" in keys:
            keys = self.get_schema_from_definitions(keys["$ref"]) or keys
        if "anyOf" in keys:
            return [rule for each in keys["anyOf"] for rule in self._names(each, schema)]
        if "enum" in keys or "const" in keys:
            names = self._readable(keys.get("enum", [keys.get("const")]), schema)
            return [{"enum": names}] if names else []
        if str(keys.get("type")) in _NEVER_NAMES:
            return []
        pattern = _KEYS_AS_NAMES.get(str(keys.get("type")))
        return [keys if pattern is None else {"pattern": f"^({pattern})$"}]

    def _readable(self, values: list[Any], schema: core_schema.CoreSchema) -> list[str]:
        """Those of some keys that can be names: pydantic reads "1" as a key of an IntEnum, and not of Literal[1]."""
        whole = core_schema.definitions_schema(core_schema.dict_schema(schema), list(self._definitions))
        validator = SchemaValidator(whole)
        names = []
        for name in (value if isinstance(value, str) else json.dumps(value) for value in values):
            try:
                validator.validate_json(json.dumps({name: None}))
            except ValidationError:
                continue
            names.append(name)
        return names

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        """An address with one of the schemes that are allowed, and a host."""
        made = super().url_schema(schema)
        schemes = schema.get("allowed_schemes")
        if not schemes:
            return made
        server = f"({_HOST})?/.*" if schemes == ["file"] else f"{_USER}{_HOST}{_PORT}([/?#].*)?"
        if "maxLength" in made:
            made["maxLength"] = min(made["maxLength"], _MOST_OF_URL)
        return made | {"pattern": f"^({'|'.join(map(re.escape, schemes))})://{server}$"}


def _either(rules: list[JsonSchemaValue]) -> JsonSchemaValue:
    """Names that follow one of several rules, as one pattern where that can be."""
    if len(rules) == 1:
        return rules[0]
    patterns: list[str] = []
    for rule in rules:
        if "enum" in rule:
            patterns += map(re.escape, rule["enum"])
        elif rule.keys() == {"pattern"}:
            patterns.append(rule["pattern"].removeprefix("^").removesuffix("$"))
        else:
            return {"anyOf": rules}  # which is refused
    return {"pattern": f"^({'|'.join(patterns)})$"}


def _decimals(schema: core_schema.DecimalSchema, whole: int, places: int | None) -> JsonSchemaValue:
    """Numbers with so many digits before the point and behind it; `places`: None for any."""
    step = Decimal(1).scaleb(-min(places or 0, _PLACES))
    most = 10 ** Decimal(max(min(whole, _DIGITS + step.adjusted()), 0)) - step
    if "max_digits" not in schema:  # then bounds of its own may lie further out
        most = max([most, *(abs(schema[key]) for key in ("ge", "gt", "le", "lt") if key in schema)])
    low, high = max(schema.get("ge", -most), -most), min(schema.get("le", most), most)
    made: JsonSchemaValue = {"type": "integer" if places == 0 else "number"}
    if "gt" in schema:
        if places is None:
            made["exclusiveMinimum"] = float(schema["gt"])
        else:  # llguidance takes 0 above an exclusive minimum of 0 where the maximum is less than 1
            low = max(low, (math.floor(Decimal(schema["gt"]) / step) + 1) * step)
    if "lt" in schema:
        if places is None:
            made["exclusiveMaximum"] = float(schema["lt"])
        else:
            high = min(high, (math.ceil(Decimal(schema["lt"]) / step) - 1) * step)
    made |= {"minimum": float(low), "maximum": float(high)}
    if "multiple_of" in schema or places:
        made["multipleOf"] = float(
            _common_multiple(schema.get("multiple_of", step), step) if places else schema["multiple_of"]
        )
    return made


def _common_multiple(a: Decimal, b: Decimal) -> Decimal:
    scale = Decimal(10) ** max(0, -min(int(n.normalize().as_tuple().exponent) for n in (a, b)))
    return math.lcm(int(a * scale), int(b * scale)) / scale


def _with_any_items(made: JsonSchemaValue) -> JsonSchemaValue:
    return {key: value for key, value in made.items() if key != "uniqueItems" or made.get("minItems", 0) > 1}
