"""The keywords of JSON Schema (drafts 4 to 2020-12): which are enforced, which say nothing, which are refused."""

from __future__ import annotations

__all__ = ["ANNOTATIONS", "ASSERTIONS", "COUNTS", "FORMATS", "INT32", "LISTS", "MAPS", "OF_ANY_VALUE", "OTHER_FORMATS",
           "SINGLE", "UNSUPPORTED"]  # fmt: skip

MAPS = frozenset({"$defs", "definitions", "patternProperties", "properties"})
"""Hold schemas by name."""
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Hold a list of schemas; `items` of the older drafts does too."""
SINGLE = frozenset({"additionalItems", "additionalProperties", "items"})
"""Hold one schema."""
ASSERTIONS = frozenset({
    "$ref", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern",
    "propertyNames", "required", "type",
})  # fmt: skip
"""Enforced."""
COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
"""Whole numbers, which JSON may write as 2.0."""
ANNOTATIONS = frozenset({
    "$anchor", "$comment", "$id", "$schema", "default", "deprecated", "description", "discriminator", "examples",
    "id", "readOnly", "title", "writeOnly",
})  # fmt: skip
"""Say nothing about what is valid (`discriminator` is OpenAPI's, beside a oneOf)."""
UNSUPPORTED = frozenset({
    "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary", "contains",
    "contentEncoding", "contentMediaType", "contentSchema", "dependencies", "dependentRequired", "dependentSchemas",
    "else", "if", "maxContains", "minContains", "not", "then", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems",
})  # fmt: skip
"""Known, and refused: no grammar is made for them."""

_THIRTY_ONE = r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_THIRTY = r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = (
    r"(?:(?:[1-9][0-9]|0[1-9])(?:0[48]|[2468][048]|[13579][26])|00(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:[2468][048]|0[48]|[13579][26])00)"
)
_DATE = rf"(?:{_YEAR}-(?:{_THIRTY_ONE}|{_THIRTY}|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

OTHER_FORMATS = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
"""Formats that llguidance knows and has right."""
OF_ANY_VALUE = frozenset({"binary", "double", "float", "int64", "password", "path"})
"""Formats of OpenAPI's and pydantic's that every text has, every number, or every integer of 15 digits."""
INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}
"""What OpenAPI's format of that name asks for."""
FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""RFC 3339 with leap years, and without leap seconds: llguidance's own allow 29 February in every year."""
