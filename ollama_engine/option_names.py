"""Names of options in other engines, and the error for an option that a call does not take."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from ollama_engine.errors import UnknownOptionError

__all__ = ["ALIASES", "meant", "refuses_unknown", "unknown_option"]

Class = TypeVar("Class", bound=type)

ALIASES: Mapping[str, str] = {
    # The context and the machine: llama.cpp and its Python bindings, Ollama, vLLM.
    **dict.fromkeys(("n_ctx", "ctx", "ctx_size", "context_length", "max_model_len", "max_seq_len"), "num_ctx"),
    **dict.fromkeys(("n_parallel", "num_parallel", "max_num_seqs", "n_seq_max"), "parallel"),
    **dict.fromkeys(("n_batch", "n_ubatch", "num_batch", "max_num_batched_tokens"), "batch_size"),
    **dict.fromkeys(("n_threads", "num_thread", "num_threads", "n_threads_batch"), "threads"),
    **dict.fromkeys(("n_gpu_layers", "num_gpu", "ngl", "gpu_layer"), "gpu_layers"),
    **dict.fromkeys(("flash_attn", "fa"), "flash_attention"),
    **dict.fromkeys(("type_k", "type_v", "cache_type_k", "cache_type_v", "kv_cache_dtype"), "kv_cache_type"),
    "use_mmap": "mmap",
    **dict.fromkeys(("model_path", "path", "filename"), "model"),
    **dict.fromkeys(("mmproj", "mmproj_path", "clip_model_path"), "projector"),
    # Sampling: these, Hugging Face, OpenAI.
    **dict.fromkeys(("temp", "t"), "temperature"),
    **dict.fromkeys(
        ("n_predict", "num_predict", "max_new_tokens", "max_completion_tokens", "max_length"), "max_tokens"
    ),
    **dict.fromkeys(("repetition_penalty", "penalty_repeat"), "repeat_penalty"),
    "penalty_last_n": "repeat_last_n",
    **dict.fromkeys(("penalty_present", "presence"), "presence_penalty"),
    **dict.fromkeys(("penalty_freq", "frequency"), "frequency_penalty"),
    **dict.fromkeys(("typ_p", "typical"), "typical_p"),
    "mirostat_mode": "mirostat",
    "mirostat_ent": "mirostat_tau",
    "mirostat_lr": "mirostat_eta",
    "dynatemp_exp": "dynatemp_exponent",
    **dict.fromkeys(("dry_sequence_breaker", "sequence_breakers"), "dry_sequence_breakers"),
    **dict.fromkeys(("dry_range", "dry_penalty_range"), "dry_penalty_last_n"),
    **dict.fromkeys(("nsigma", "n_sigma"), "top_n_sigma"),
    **dict.fromkeys(("sampler_order", "sampler_priority", "sampling_order"), "samplers"),
    **dict.fromkeys(("stop_sequences", "stop_strings", "stops"), "stop"),
    **dict.fromkeys(("n_probs", "top_logprobs", "num_logprobs"), "logprobs"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
    # Requests.
    **dict.fromkeys(("truncate", "truncation", "shift", "context_shift", "ctx_shift"), "on_overflow"),
    **dict.fromkeys(("n_keep", "keep"), "num_keep"),
    "cache_prompt": "cache",
    "max_time": "timeout",
    **dict.fromkeys(("response_format", "output_format", "structured_outputs", "guided_json", "json_schema"), "format"),
    **dict.fromkeys(("guided_regex", "guided_choice", "guided_grammar", "grammar", "regex", "ebnf"), "format"),
    **dict.fromkeys(("image", "media", "pictures", "multi_modal_data"), "images"),
    # Chats.
    **dict.fromkeys(("enable_thinking", "thinking", "reasoning", "reasoning_effort"), "think"),
    "chat_template": "template",
    **dict.fromkeys(("chat_template_kwargs", "template_kwargs"), "template_variables"),
    "functions": "tools",
}
"""Names that others give to what is an option here."""

NOT_HERE: Mapping[str, str] = {
    "stream": "call stream or astream, for messages chat_stream or achat_stream, which give the answer piece by piece",
    **dict.fromkeys(
        ("system", "system_prompt", "system_message", "instructions"),
        'put {"role": "system", "content": ...} before the other messages of a chat',
    ),
    **dict.fromkeys(
        ("adapter", "adapter_path", "adapters", "enable_lora", "lora", "lora_adapters", "lora_base", "lora_path",
         "lora_request", "lora_scale"),
        "adapters (LoRA) are not applied; merge one into the weights of its model, and convert that",
    ),
    **dict.fromkeys(
        ("assistant_model", "model_draft", "num_speculative_tokens", "speculative_config", "speculative_model"),
        "a smaller model that guesses tokens is Engine's draft_model; how far it guesses is measured",
    ),
}  # fmt: skip
"""Options of other engines that are none here, and what to do instead."""

ALIKE = 0.75
"""How much of two names must be alike for one to be a slip of the other."""


def unknown_option(
    call: str, name: str, own: Collection[str], elsewhere: Mapping[str, Collection[str]] | None = None,
    fields: tuple[str, Collection[str]] = ("", ()),
) -> UnknownOptionError:  # fmt: skip
    """The error for an option `name` that is not among the `own` options of `call`.

    `elsewhere`: options of other calls, {how to write one, with {} for its name: their names}. `fields`: the name of a
    class whose fields are options of this call too, and their names.
    """
    others, names = fields
    homes = {"": [*own, *names], **(elsewhere or {})}
    likely = meant(name, [option for known in homes.values() for option in known])
    said = f"{call} takes no {name!r}"
    if likely != name and name in NOT_HERE:
        return UnknownOptionError(f"{said}: {NOT_HERE[name]}")
    if likely is None:
        return UnknownOptionError(f"{said}; it takes {', '.join(own)}{others and f', and the fields of {others}'}")
    home = next(home for home, names in homes.items() if likely in names)
    if likely == name:
        return UnknownOptionError(f"{said}; it belongs into {home.format(name)}")
    return UnknownOptionError(f"{said}; did you mean {home.format(likely) if home else likely}?")


def meant(name: str, known: list[str]) -> str | None:
    """The known option that is probably meant: by its name in another engine, or by a similar name; or None."""
    plain = name.lower().replace("-", "_")
    for candidate in (plain, ALIASES.get(plain)):
        if candidate in known:
            return candidate
    likely = [option for option in known if {plain[:4], option[:4]} != {"min_", "max_"}]
    return next(iter(get_close_matches(plain, likely, 1, ALIKE)), None)


def refuses_unknown(elsewhere: Callable[[], Mapping[str, Collection[str]]] = dict) -> Callable[[Class], Class]:
    """A class decorator: an unknown keyword argument of the constructor raises `unknown_option`'s error.

    Python does the check; only its TypeError is examined. So a correct call costs just one more function call.
    """

    def decorate(cls: Class) -> Class:
        init: Any = cls.__init__  # type: ignore[misc]
        code = init.__code__
        own = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

        def checked(self: object, *args: Any, **options: Any) -> None:
            try:
                init(self, *args, **options)
            except TypeError:
                unknown = next((name for name in options if name not in own), None)
                if unknown is None:
                    raise
                raise unknown_option(cls.__name__, unknown, own, elsewhere()) from None

        cls.__init__ = functools.update_wrapper(checked, init)  # type: ignore[misc]
        return cls

    return decorate
