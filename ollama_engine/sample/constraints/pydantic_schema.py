"""The JSON schema of a Python type, as narrow as what pydantic reads back: a whole answer has to be an instance.

pydantic's own schemas allow any text for a Decimal, for a number or bool that is a key of a dict, and as scheme of an
HttpUrl. Of a set they ask for different items, which no grammar can; reading one drops items that come twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pydantic import PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

__all__ = ["narrow_schema"]

_DIGITS = 15
"""Of a Decimal: pydantic reads a number by way of a float, which has so many exactly."""
_PLACES = 6
"""Behind the point: llguidance does not take every smaller step."""
_KEYS_AS_NAMES = {
    "boolean": "^(true|false)$",
    "integer": "^-?(0|[1-9][0-9]{0,14})$",
    "number": r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?$",
}
"""Keys of a dict by their type: JSON has texts there."""


def narrow_schema(given: Any) -> tuple[JsonSchemaValue, Callable[[str], object]]:
    """A type's schema, and what reads an instance of an answer. Raises TypeError where pydantic makes no schema."""
    try:
        adapter = TypeAdapter(given)
        return adapter.json_schema(schema_generator=_NarrowSchema), adapter.validate_json
    except PydanticUserError as error:
        raise TypeError(str(error).splitlines()[0]) from None


class _NarrowSchema(GenerateJsonSchema):
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
        keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        pattern = _KEYS_AS_NAMES.get(str(keys.get("type")))
        return made if pattern is None else made | {"propertyNames": {"pattern": pattern}}

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        """An address with one of the schemes that are allowed, and a host."""
        made = super().url_schema(schema)
        schemes = schema.get("allowed_schemes")
        return made | {"pattern": f"^({'|'.join(schemes)})://[A-Za-z0-9]"} if schemes else made


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
