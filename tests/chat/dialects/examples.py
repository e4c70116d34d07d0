"""An answer in every dialect, written by hand from its models' documentation and templates.

Each thinks "They ask." (where the dialect has reasoning), says "Let me look." (where it can beside calls), and calls
weather(city="Paris", days=3) and get_time().
"""

from __future__ import annotations

_OBJECTS = [
    '{"name": "weather", "arguments": {"city": "Paris", "days": 3}}',
    '{"name": "get_time", "arguments": {}}',
]
_ARRAY = f"[{_OBJECTS[0]}, {_OBJECTS[1]}]"
_LINES = f"{_OBJECTS[0]}\n{_OBJECTS[1]}"
_THINK = "<think>\nThey ask.\n</think>\n\n"
_CITY, _NONE = '{"city": "Paris", "days": 3}', "{}"
_HERMES = f"<tool_call>\n{_OBJECTS[0]}\n</tool_call>\n<tool_call>\n{_OBJECTS[1]}\n</tool_call>"
_TAGGED = (
    "<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>",
    "<function=get_time>\n</function>",
)
_COMMAND_R = """[
    {"tool_name": "weather", "parameters": {"city": "Paris", "days": 3}},
    {"tool_name": "get_time", "parameters": {}}
]"""
_PYTHON = '[weather(city="Paris", days=3), get_time()]'


def _dsml(section: str) -> str:
    return (
        f'<｜DSML｜{section}>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        f'<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜{section}>'
    )


EXAMPLES: dict[str, str] = {
    "apertus": (
        "<|inner_prefix|>They ask.<|inner_suffix|>Let me look."
        f'<|tools_prefix|>[{{"weather": {_CITY}}}, {{"get_time": {_NONE}}}]<|tools_suffix|>'
    ),
    "apriel": (
        "Here are my reasoning steps:\nThey ask.\n[BEGIN FINAL RESPONSE]\nLet me look."
        f"\n<tool_calls>{_ARRAY}</tool_calls>"
    ),
    "command-r-plus": f"{_THINK}Let me look.\nAction: ```json\n{_COMMAND_R}\n```",
    "command-r7b": (
        "<|START_THINKING|>They ask.<|END_THINKING|><|START_RESPONSE|>Let me look.<|END_RESPONSE|>"
        f"<|START_ACTION|>{_COMMAND_R}<|END_ACTION|>"
    ),
    "deepseek-v3": (
        f"{_THINK}Let me look.<｜tool▁calls▁begin｜>"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{_CITY}\n"
        "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek-v3.1": (
        f"{_THINK}Let me look.<｜tool▁calls▁begin｜>"
        f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{_CITY}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek-v3.2": f"{_THINK}Let me look.\n\n{_dsml('function_calls')}",
    "functionary-v3.1": (
        f"{_THINK}Let me look.<function=weather>{_CITY}</function>\n<function=get_time>{_NONE}</function>"
    ),
    "functionary-v3.2": f"all\nLet me look.\n>>>weather\n{_CITY}\n>>>get_time\n{_NONE}",
    "gemma": (f"{_THINK}Let me look.\n```tool_code\nprint(weather(city='Paris', days=3))\nget_time()\n```"),
    "gemma4": (
        "<|channel>thought\nThey ask.\n<channel|>Let me look."
        '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|><|tool_call>call:get_time{}<tool_call|>'
    ),
    "gigachat": f"{_THINK}Let me look.<|function_call|>{_LINES}<|message_sep|>",
    "glm": (
        f"{_THINK}Let me look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>"
    ),
    "granite": f"{_THINK}<response>Let me look.</response><|tool_call|>{_ARRAY}",
    "harmony": (
        "<|channel|>analysis<|message|>They ask.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{_CITY}<|call|>"
        f"<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{_NONE}<|call|>"
    ),
    "hermes": f"{_THINK}Let me look.\n{_HERMES}",
    "hunyuan3": (
        "<think:opensource>They ask.</think:opensource>Let me look.<tool_calls:opensource>\n"
        "<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Paris</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>\n"
        "<tool_call:opensource>get_time<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
    ),
    "json": f"{_THINK}```json\n{_ARRAY}\n```",
    "kimi-k2": (
        f"{_THINK}Let me look.<|tool_calls_section_begin|>"
        f"<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{_CITY}<|tool_call_end|>"
        f"<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{_NONE}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "kimi-k3": (
        "<|open|>think<|sep|>They ask.<|close|>think<|sep|><|open|>response<|sep|>Let me look.<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="get_time" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    ),
    "lfm2": f"{_THINK}Let me look.<|tool_call_start|>{_PYTHON}<|tool_call_end|>",
    "llama3": (
        f'{_THINK}Let me look.<|python_tag|>{{"name": "weather", "parameters": {_CITY}}}; '
        f'{{"type": "function", "name": "get_time", "parameters": {_NONE}}}'
    ),
    "minicpm5": (
        f'{_THINK}Let me look.\n<function name="weather"><param name="city"><![CDATA[Paris]]></param>'
        '<param name="days">3</param></function>\n<function name="get_time"></function>'
    ),
    "minimax-m1": f"{_THINK}Let me look.\n<tool_calls>\n{_LINES}\n</tool_calls>",
    "minimax-m2": (
        f"{_THINK}Let me look.\n<minimax:tool_call>\n"
        '<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>'
    ),
    "minimax-m3": (
        "<mm:think>They ask.</mm:think>Let me look.]<]minimax[>[<tool_call>\n"
        ']<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>'
        "]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n"
        ']<]minimax[>[<invoke name="get_time">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>'
    ),
    "mistral": f"[THINK]They ask.[/THINK]Let me look.[TOOL_CALLS] {_ARRAY}",
    "mistral-tekken": (
        f"[THINK]They ask.[/THINK]Let me look.[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{_CITY}"
        f"[TOOL_CALLS]get_time[ARGS]{_NONE}"
    ),
    "muse": (
        " to=self<|message|>They ask.<|eom|><|start|>assistant to=user<|message|>Let me look.<|eom|>"
        "<|start|>assistant to=weather<|message|>"
        '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>'
        '<|start|>assistant to=get_time<|message|><atem:function_calls>\n<atem:invoke name="get_time">\n'
        "</atem:invoke>\n</atem:function_calls><|eot|>"
    ),
    "nemotron-v2": f"{_THINK}Let me look.\n<TOOLCALL>{_ARRAY}</TOOLCALL>",
    "phi4": f"{_THINK}Let me look.\n<|tool_call|>{_ARRAY}<|/tool_call|>",
    "qwen3-coder": (
        f"{_THINK}Let me look.\n\n<tool_call>\n{_TAGGED[0]}\n</tool_call>\n<tool_call>\n{_TAGGED[1]}\n</tool_call>"
    ),
    "seed-oss": (
        "<seed:think>They ask.</seed:think>\nLet me look.\n\n<seed:tool_call>\n<function=weather>\n"
        "<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>"
    ),
    "smollm3": f"{_THINK}Let me look.\n{_HERMES}",
    "solar": (
        "<|think|>They ask.<|end|><|begin|>assistant<|content|>Let me look.<|end|><|begin|>assistant<|tool_calls|>"
        f"<|tool_call:begin|>a1B2c3D4e<|tool_call:name|>weather<|tool_call:args|>{_CITY}<|tool_call:end|>"
        f"<|tool_call:begin|>b1B2c3D4e<|tool_call:name|>get_time<|tool_call:args|>{_NONE}<|tool_call:end|><|calls|>"
    ),
    "text": f"{_THINK}Let me look.",
}

OTHER_FORMS: list[tuple[str, str]] = [
    ("command-r-plus", f"Action:\n```json\n{_COMMAND_R}```"),
    ("deepseek-v3.2", _dsml("tool_calls")),
    ("gemma", _PYTHON),
    ("gemma", f"```json\n{_ARRAY}\n```"),
    ("gemma", f"```tool_code\n{_PYTHON}\n```"),
    ("gigachat", f"<|message_sep|>\n\nfunction call<|role_sep|>\n{_LINES}"),
    ("granite", f"<tool_call>{_ARRAY}"),
    ("hermes", f"<tool_call>{_ARRAY}</tool_call>"),
    ("json", _ARRAY),
    ("json", _LINES),
    ("lfm2", f"<|tool_call_start|>{_ARRAY}<|tool_call_end|>"),
    ("llama3", "; ".join(_OBJECTS)),
    ("llama3", _ARRAY),
    ("mistral-tekken", f"[TOOL_CALLS]{_ARRAY}"),
    ("phi4", f"functools{_ARRAY}"),
    ("qwen3-coder", "\n".join(_TAGGED)),
    ("smollm3", '<code>weather(city="Paris", days=3)\nget_time()</code>'),
]
"""Other ways in which models of a dialect write the calls; no reasoning, no content."""
