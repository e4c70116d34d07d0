"""Templates whose texts Go's text/template has written: one for each feature, and random ones."""

# ruff: noqa: E501 (templates in one line, as they are compared)

from __future__ import annotations

import random
from typing import Any

__all__ = ["DATA", "FEATURES", "random_source"]

DATA: dict[str, Any] = {
    "Name": "Ada",
    "Empty": "",
    "Text": 'a<b> & "c" d\u2028 \u00e9\u4e16',
    "Yes": True,
    "No": False,
    "Half": 0.5,
    "Big": 1.5e9,
    "Tiny": 2.5e-7,
    "Nothing": None,
    "List": ["x", "y", "z"],
    "None": [],
    "Map": {"b": "2", "a": "1", "c": {"d": ["e", True, None]}},
    "Messages": [
        {"Role": "system", "Content": "Be brief."},
        {"Role": "user", "Content": "Hi <there>"},
        {"Role": "assistant", "Content": "", "ToolCalls": [{"Function": {"Name": "f", "Arguments": {"q": "1"}}}]},
        {"Role": "user", "Content": "Bye"},
    ],
}

FEATURES = [
    "plain",
    "",
    "{{ .Name }}|{{.Name}}|{{- .Name -}}  |",
    "a \n {{- 1 -}} \n b {{- /* a comment */ -}} c {{/* another */}} d",
    "{{ .Empty }}{{ .Missing }}{{ .Nothing }}",
    "{{ .Yes }} {{ .No }} {{ .Half }} {{ .Big }} {{ .Tiny }} {{ 1 }} {{ -3 }} {{ 0x1F }} {{ 1e3 }} {{ 'a' }} {{ 017 }} {{ 1_000 }}",
    "{{ .List }} {{ .None }} {{ .Map }}",
    "{{ json .Map }} {{ json .Text }} {{ json .List }} {{ json .Nothing }} {{ json .Half }} {{ json .Tiny }} {{ json .Big }}",
    '{{ "q\\"\\n\\t\\u00e9\\x41" }} {{ `raw\\n` }} {{ "}}" }}',
    "{{ if .Yes }}yes{{ else }}no{{ end }} {{ if .No }}yes{{ else }}no{{ end }} {{ if .Empty }}e{{ end }}",
    "{{ if .No }}a{{ else if .None }}b{{ else if .List }}c{{ else }}d{{ end }}",
    "{{ with .Name }}{{ . }}{{ end }}{{ with .Empty }}x{{ else }}empty {{ .Name }}{{ end }}",
    "{{ with $x := .List }}{{ len $x }}{{ $.Name }}{{ end }}",
    "{{ range .List }}[{{ . }}]{{ end }}{{ range .None }}x{{ else }}none{{ end }}",
    "{{ range $i, $e := .List }}{{ $i }}={{ $e }} {{ end }}{{ range $e := .List }}{{ $e }}{{ end }}",
    "{{ range $k, $v := .Map }}{{ $k }}:{{ $v }} {{ end }}",
    '{{ range .List }}{{ if eq . "y" }}{{ continue }}{{ end }}{{ . }}{{ end }}|{{ range .List }}{{ if eq . "y" }}{{ break }}{{ end }}{{ . }}{{ end }}',
    '{{ $last := "" }}{{ range .List }}{{ $last = . }}{{ end }}{{ $last }}',
    "{{ $x := 1 }}{{ if .Yes }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}",
    "{{ $x := 1 }}{{ if .Yes }}{{ $x = 2 }}{{ end }}{{ $x }}",
    "{{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}{{ .Role }}{{ if $last }}!{{ end }} {{ end }}",
    "{{ range .Messages }}{{ range .ToolCalls }}{{ .Function.Name }}({{ json .Function.Arguments }}){{ end }}{{ end }}",
    "{{ (index .Messages 1).Content }} {{ index .Map \"a\" }} {{ index .Map \"zz\" }} {{ index .List 2 }} {{ index .Name 0 }}",
    '{{ eq .Name "Ada" }} {{ ne .Name "Ada" }} {{ lt 1 2 }} {{ le 2 2 }} {{ gt 1 2 }} {{ ge "b" "a" }} {{ eq 3 1 2 3 }}',
    "{{ and .Yes .Name }} {{ and .No .Name }} {{ or .Empty .Name }} {{ or .Empty .No }} {{ not .Yes }} {{ not .Empty }}",
    "{{ and .No (index .List 99) }} {{ or .Yes (index .List 99) }}",
    "{{ len .Name }} {{ len .Text }} {{ len .List }} {{ len .Map }}",
    '{{ slice .Name 1 }} {{ slice .Name 0 2 }} {{ slice .List 1 2 }} {{ slice .List 1 }} {{ slice .Name }}',
    '{{ printf "%s-%d-%v-%q-%t-%5.2f-%x" .Name 3 .List .Name .Yes .Half 255 }} {{ printf "100%%" }}',
    '{{ printf "%5s|%-5s|%05d" .Name .Name 42 }} {{ "x" | printf "%s%s" "y" }}',
    '{{ print "a" 1 2 "b" }} {{ print 1 2 }} {{ println "a" 1 }}',
    "{{ .Name | html }} {{ .Text | html }} {{ urlquery .Text }}",
    "{{ .Name | len }} {{ .Name | len | printf \"%d\" }} {{ .Map | json | len }}",
    '{{ define "T" }}<{{ . }}>{{ end }}{{ template "T" .Name }}{{ template "T" }}',
    '{{ block "B" .List }}{{ len . }}{{ end }}',
    '{{ define "R" }}{{ range . }}{{ . }},{{ end }}{{ end }}{{ template "R" .List }}',
    "{{ $ | json | len }} {{ $.Name }} {{ .Map.c.d }} {{ ((.Map).c).d }}",
    "{{ range $i, $m := .Messages }}{{ if and (eq $m.Role \"user\") $i }}{{ $m.Content }}{{ else if eq .Role \"system\" }}S{{ end }}{{ end }}",
    "{{ if (and .Yes (or .No .Name)) }}x{{ end }}{{ if not (eq .Name \"x\") }}y{{ end }}",
    "{{- if .Yes }}  a  {{- end }}  b  {{ if .Yes -}}  c  {{ end -}}  d",
    "{{ .Name.First }}",
    "{{ .Missing.First }}",
    "{{ nosuch .Name }}",
    "{{ if .Yes }}",
    "{{ end }}",
    "{{ else }}",
    "{{ .Name ",
    "{{ }}",
    "{{ $y }}",
    "{{ $y = 1 }}",
    "{{ break }}",
    "{{ index .List 9 }}",
    '{{ index .List "a" }}',
    "{{ len 3 }}",
    '{{ eq .Name 3 }}',
    '{{ lt .Yes .No }}',
    "{{ slice .Name 2 1 }}",
    "{{ slice .Map 1 }}",
    '{{ template "none" . }}',
    "{{ range .Name }}{{ end }}",
    "{{ \"a\" \"b\" }}",
    "{{ .Name .Name }}",
    '{{ printf "%d" .Name }}',
    "{{ nil }}",
    "{{ true | not }} {{ not nil }}",
    "{{ (.Name }}",
    "{{ .Name) }}",
    "{{ 'ab' }}",
    '{{ "open }}',
    "{{- }}x",
    "{{ if }}x{{ end }}",
    "{{ with .Map }}{{ .a }}{{ with .c }}{{ .d }}{{ end }}{{ end }}",
    "{{ range .Messages }}{{ with .ToolCalls }}{{ range . }}{{ .Function.Arguments.q }}{{ end }}{{ else }}-{{ end }}{{ end }}",
]  # fmt: skip


def random_source(seed: int) -> str:
    """A random template over DATA. Many of them fail, in Go as here."""
    return _Random(random.Random(seed)).body(0)


class _Random:
    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._variables = ["$"]

    def body(self, depth: int) -> str:
        return "".join(self._node(depth) for _ in range(self._draw.randint(1, 4)))

    def _node(self, depth: int) -> str:
        kind = self._draw.choice(["text", "text", "value", "value", "value", "if", "with", "range", "declare"])
        if kind == "text" or (depth > 2 and kind in ("if", "with", "range")):
            return self._draw.choice(["a", " ", "\n", " b ", "{", "}", "\t\n x"])
        if kind == "value":
            return self._action(self._pipe(0))
        if kind == "declare":
            name = self._draw.choice(["$a", "$b"])
            known = name in self._variables
            pipe = self._pipe(0)
            self._variables.append(name)
            return self._action(f"{name} {self._draw.choice([':=', '=']) if known else ':='} {pipe}")
        inside = len(self._variables)
        head = self._pipe(0)
        if kind == "range" and self._draw.random() < 0.5:
            names = self._draw.choice([["$a"], ["$a", "$b"]])
            self._variables += names
            head = f"{', '.join(names)} := {head}"
        body = self._action(f"{kind} {head}") + self.body(depth + 1)
        if self._draw.random() < 0.4:
            body += self._action("else") + self.body(depth + 1)
        del self._variables[inside:]
        return body + self._action("end")

    def _action(self, inside: str) -> str:
        opens, closes = self._draw.choice(["{{", "{{ ", "{{- "]), self._draw.choice(["}}", " }}", " -}}"])
        return f"{opens}{inside}{closes}"

    def _pipe(self, depth: int) -> str:
        if depth > 2 or self._draw.random() < 0.5:
            return self._value(depth)
        call = self._call(depth)
        return (
            call if self._draw.random() < 0.7 else f"{self._value(depth)} | {self._draw.choice(['len', 'json', 'not'])}"
        )

    def _call(self, depth: int) -> str:
        values = [self._value(depth + 1) for _ in range(3)]
        return self._draw.choice([
            f"eq {values[0]} {values[1]}", f"ne {values[0]} {values[1]}", f"and {values[0]} {values[1]}",
            f"or {values[0]} {values[1]} {values[2]}", f"not {values[0]}", f"len {values[0]}",
            f"index {values[0]} {self._draw.choice(['0', '1', '2', '7', values[1]])}", f"slice {values[0]} 1",
            f"json {values[0]}", f"print {values[0]} {values[1]}", f'printf "%v:%v" {values[0]} {values[1]}',
            f"lt {values[0]} {values[1]}",
        ])  # fmt: skip

    def _value(self, depth: int) -> str:
        if depth < 2 and self._draw.random() < 0.2:
            return f"({self._call(depth + 1)})"
        return self._draw.choice([
            ".Name", ".Empty", ".Text", ".Yes", ".No", ".Half", ".List", ".None", ".Map", ".Map.c", ".Messages", ".Role",
            ".Content", ".", '"x"', '"Ada"', "1", "0", "true", self._draw.choice(self._variables), "$.Name", "$.List",
        ])  # fmt: skip
