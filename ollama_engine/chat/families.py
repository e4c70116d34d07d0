"""Chat templates for files that have none, chosen by the control tokens of their vocabulary.

A family's control tokens say which format its models were trained on; what cannot be known is whether this model was
trained to chat at all. So a fallback is taken with a warning. The formats are those that the families' model cards
describe; tools and reasoning are left to templates from files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["FAMILIES", "Family", "fallback_family"]


@dataclass(frozen=True, slots=True)
class Family:
    """A format of conversations.

    Attributes:
        name: what it is called.
        tokens: control tokens that all are in the vocabulary of such a model.
        source: the template.
        hints: words of which one is in the name of such a model, where tokens do not tell it from others.
    """

    name: str
    tokens: tuple[str, ...]
    source: str
    hints: tuple[str, ...] = ()


_EACH = "{%- for message in messages %}"
_DONE = "{%- endfor %}"
_TEXT = "message['content'] | trim"

_HEADERS = (
    "{{- bos_token }}" + _EACH + "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
    f"{_TEXT} + '<|eot_id|>' }}}}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)  # fmt: skip

_CHATML = (
    _EACH + "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)  # fmt: skip

_PHI4 = (
    _EACH + "{{- '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + '<|im_end|>' }}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_sep|>' }}{%- endif %}"
)  # fmt: skip

_PHI3 = (
    _EACH + "{{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)  # fmt: skip

_ZEPHYR = (
    _EACH + "{{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)  # fmt: skip

_GLM = (
    "{{- '[gMASK]<sop>' }}" + _EACH + "{{- '<|' + message['role'] + '|>\\n' + message['content'] }}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)  # fmt: skip

_GRANITE = (
    _EACH + "{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + "
    "'<|end_of_text|>\\n' }}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}"
)  # fmt: skip

# These have no role for a system message: it stands before the first message of the user.
_SYSTEM_FIRST = (
    "{%- set ns = namespace(system='') %}" + _EACH
    + "{%- if message['role'] == 'system' %}"
    f"{{%- set ns.system = ns.system + ({_TEXT}) + '\\n\\n' %}}{{%- else %}}"
)  # fmt: skip

_SYSTEM_SAID = "{%- if ns.system %}{{ raise_exception('a user message must follow the system message') }}{%- endif %}"

_GEMMA = (
    "{{- bos_token }}" + _SYSTEM_FIRST
    + "{{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + ns.system }}"
    f"{{{{- {_TEXT} + '<end_of_turn>\\n' }}}}"
    "{%- set ns.system = '' %}{%- endif %}" + _DONE + _SYSTEM_SAID
    + "{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"
)  # fmt: skip

_MISTRAL = (
    "{{- bos_token }}" + _SYSTEM_FIRST
    + "{%- if message['role'] == 'assistant' %}{{- message['content'] + eos_token }}{%- else %}"
    "{{- '[INST]' + ns.system + message['content'] + '[/INST]' }}{%- set ns.system = '' %}{%- endif %}{%- endif %}"
    + _DONE + _SYSTEM_SAID
)  # fmt: skip

_LLAMA2 = (
    "{%- set ns = namespace(system='') %}" + _EACH
    + "{%- if message['role'] == 'system' %}"
    "{%- set ns.system = '<<SYS>>\\n' + message['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{%- elif message['role'] == 'assistant' %}"
    f"{{{{- ' ' + ({_TEXT}) + ' ' + eos_token }}}}"
    "{%- else %}"
    f"{{{{- bos_token + '[INST] ' + ns.system + ({_TEXT}) + ' [/INST]' }}}}"
    "{%- set ns.system = '' %}{%- endif %}" + _DONE + _SYSTEM_SAID
)  # fmt: skip

_DEEPSEEK = (
    "{{- bos_token }}" + _EACH
    + "{%- if message['role'] == 'assistant' %}{{- '<｜Assistant｜>' + message['content'] + eos_token }}"
    "{%- elif message['role'] == 'system' %}{{- message['content'] }}"
    "{%- else %}{{- '<｜User｜>' + message['content'] }}{%- endif %}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}"
)  # fmt: skip

_COMMAND = (
    "{%- set roles = {'system': 'SYSTEM', 'assistant': 'CHATBOT'} %}{{- bos_token }}" + _EACH
    + "{%- set role = roles.get(message['role'], 'USER') %}"
    "{{- '<|START_OF_TURN_TOKEN|><|' + role + '_TOKEN|>' + message['content'] + '<|END_OF_TURN_TOKEN|>' }}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif %}"
)  # fmt: skip

_HARMONY = (
    _EACH + "{{- '<|start|>' + message['role'] }}"
    "{%- if message['role'] == 'assistant' %}{{- '<|channel|>final' }}{%- endif %}"
    "{{- '<|message|>' + message['content'] + '<|end|>' }}" + _DONE
    + "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family("llama3", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), _HEADERS),
    Family("phi4", ("<|im_start|>", "<|im_sep|>", "<|im_end|>"), _PHI4),
    Family("chatml", ("<|im_start|>", "<|im_end|>"), _CHATML),
    Family("gemma", ("<start_of_turn>", "<end_of_turn>"), _GEMMA),
    Family("harmony", ("<|start|>", "<|channel|>", "<|message|>", "<|return|>"), _HARMONY),
    Family("granite", ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"), _GRANITE),
    Family("command", ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"), _COMMAND),
    Family("deepseek", ("<｜User｜>", "<｜Assistant｜>"), _DEEPSEEK),
    Family("glm", ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>"), _GLM),
    Family("phi3", ("<|user|>", "<|assistant|>", "<|end|>"), _PHI3),
    Family("mistral", ("[INST]", "[/INST]"), _MISTRAL),
    Family("zephyr", ("<|user|>", "<|assistant|>", "</s>"), _ZEPHYR),
    Family("llama2", ("<s>", "</s>"), _LLAMA2, ("llama-2", "llama 2", "llama2", "codellama", "mistral", "mixtral")),
)
"""The first that fits is taken: those of several tokens before those whose tokens are among them."""


def fallback_family(has_token: Callable[[str], bool], name: str = "") -> Family | None:
    """The family whose control tokens a vocabulary has; None where none fits.

    has_token: whether a text is a control token. name: of the model, which tells base models of Llama 2 and Mistral
    from those that chat: their tokens are the same.
    """
    plain = name.lower()
    chats = any(word in plain for word in ("chat", "instruct", "-it"))
    for family in FAMILIES:
        hinted = not family.hints or (chats and any(hint in plain for hint in family.hints))
        if hinted and all(map(has_token, family.tokens)):
            return family
    return None
