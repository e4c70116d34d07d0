"""Small templates, one for each thing that transformers gives to templates."""

from __future__ import annotations

OWN: dict[str, str] = {
    "trim_blocks": "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "lstrip_blocks": "a\n   {% if true %}\n   b\n   {% endif %}\n   c",
    "break": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }},{% endfor %}",
    "continue": "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.role }},{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<{{ m.content }}>"
    "{% endgeneration %}{% endif %}{% endfor %}",
    "strftime_now": "{{ strftime_now('%d %b %Y %H:%M:%S') }}",
    "raise_exception": "{{ raise_exception('no') }}",
    "tojson": "{{ tools | tojson }}",
    "tojson indent": "{{ tools | tojson(indent=4) }}",
    "tojson compact": "{{ tools | tojson(separators=(',', ':'), sort_keys=true) }}",
    "tojson ascii": "{{ tools | tojson(ensure_ascii=true) }}",
    "tojson text": "{{ messages[0].content | tojson }}{{ none | tojson }}{{ 1.50 | tojson }}{{ true | tojson }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "namespace underscore": "{% set ns = namespace(_n=0) %}",
    "dict": "{{ dict(a=1, b='x') | tojson }}{{ dict.fromkeys(['a', 'b'], 0) | tojson }}",
    "documents": "{% if documents is none %}none{% endif %}{% if tools is none %}none{% endif %}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ unk_token }}|",
    "undefined": "{{ nothing }}{{ messages[0].nothing }}|{{ nothing is defined }}",
    "undefined attribute": "{{ nothing.more }}",
    "macro": "{% macro show(m) %}[{{ m.role }}:{{ m.content }}]{% endmacro %}{% for m in messages %}{{ show(m) }}"
    "{% endfor %}",
    "call block": "{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}x{{ messages[0].role }}"
    "{% endcall %}",
    "set block": "{% set x %}a{{ messages[0].content }}b{% endset %}{{ x | trim | length }}{{ x }}",
    "filter block": "{% filter upper %}a{{ messages[0].content }}{% endfilter %}",
    "strings": "{{ messages[0].content.strip().split(' ') }}{{ 'a,b'.split(',') | join('-') }}{{ 'x' ~ 1 ~ 'y' }}"
    "{{ 'ab' * 3 }}{{ '%s-%d' | format('a', 3) }}{{ 'a{}b'.format(1) }}{{ 'abc'[1:] }}{{ 'abc'[::-1] }}"
    "{{ 'aXbX'.replace('X', '') }}{{ 'abc' | replace('b', 'd') }}{{ 'a b' | title }}{{ 'abc' | first }}"
    "{{ 'abc' | list }}{{ 'a\nb' | indent(2) }}{{ ['b', 'a'] | sort | join }}{{ 'é' | upper }}",
    "joined attribute": "{{ messages | join(', ', attribute='role') }}{{ messages | map(attribute='role') | join }}",
    "safe": "{{ '<a>' | safe + messages[0].content + '</a>' | safe }}{{ messages[0].content | e }}"
    "{{ '<' ~ '<b>' | safe }}",
    "selectattr": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "rejectattr": "{{ (messages | rejectattr('role', 'equalto', 'user') | list)[0].role }}",
    "loop": "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.previtem.role if loop.previtem is defined }}{% endfor %}",
    "tests": "{{ messages[0] is mapping }}{{ messages is sequence }}{{ messages[0].content is string }}"
    "{{ tools is iterable }}{{ 1 is number }}{{ 'a' in messages[0].content }}",
    "items": "{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
    "{% for k, v in messages[0] | dictsort %}{{ k }},{% endfor %}",
    "changes a list": "{% set x = [1] %}{{ x.append(2) }}",
    "changes a dict": "{{ messages[0].update({'a': 1}) }}",
    "underscore": "{{ messages.__class__.__mro__ }}",
    "format escape": "{{ '{0.__class__}'.format(messages) }}",
    "range": "{{ range(200000) | length }}",
    "white space": "{{- ' a ' -}}  \n  {%- if true -%}  b  {%- endif -%}  c\n\n",
    "comment": "a{# no #}b{#- no -#} c",
    "raw": "{% raw %}{{ messages }}{% endraw %}",
    "final line break": "a\n",
    "unicode": "<｜User｜>é\u2028{{ '▁' }}",
}
