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
    # The context and the machine: llama.cpp (its short flags too) and its Python bindings, Ollama, vLLM.
    **dict.fromkeys(("n_ctx", "ctx", "c", "ctx_size", "context_length", "max_model_len", "max_seq_len"), "num_ctx"),
    **dict.fromkeys(("n_parallel", "num_parallel", "np", "max_num_seqs", "n_seq_max"), "parallel"),
    **dict.fromkeys(("n_batch", "n_ubatch", "b", "ub", "num_batch", "max_num_batched_tokens"), "batch_size"),
    **dict.fromkeys(("n_threads", "num_thread", "num_threads", "n_threads_batch"), "threads"),
    **dict.fromkeys(("n_gpu_layers", "num_gpu", "ngl", "gpu_layer"), "gpu_layers"),
    "ts": "tensor_split",
    "mg": "main_gpu",
    **dict.fromkeys(("n_cpu_moe", "ncmoe"), "cpu_experts"),
    **dict.fromkeys(("flash_attn", "fa"), "flash_attention"),
    **dict.fromkeys(
        ("type_k", "type_v", "cache_type_k", "cache_type_v", "ctk", "ctv", "kv_cache_dtype"), "kv_cache_type"
    ),
    **dict.fromkeys(("assistant_model", "model_draft", "md", "speculative_model"), "draft_model"),
    "use_mmap": "mmap",
    **dict.fromkeys(("model_path", "path", "filename"), "model"),
    **dict.fromkeys(("mmproj", "mmproj_path", "mm", "clip_model_path"), "projector"),
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
    name: instead
    for names, instead in (
        ("stream",
         "call stream or astream, for messages chat_stream or achat_stream, which give the answer piece by piece"),
        ("system system_prompt system_message instructions",
         'put {"role": "system", "content": ...} before the other messages of a chat'),
        ("adapter adapter_path adapters enable_lora lora lora_adapters lora_base lora_path lora_request lora_scale",
         "adapters (LoRA) are not applied; merge one into the weights of its model, and convert that"),
        ("num_speculative_tokens speculative_config draft_max draft_min prompt_lookup_num_tokens",
         "a smaller model that guesses tokens is the draft_model of the engine; how far it guesses is measured"),
        ("enable_prefix_caching no_enable_prefix_caching prefix_caching",
         "prompts that begin alike share that beginning without being asked; cache=False leaves one request out, and "
         "prefix_store keeps prefixes on disk"),
        ("enable_chunked_prefill", "prompts are always read in pieces, beside answers; batch_size is the largest step"),
        ("gpu_memory_utilization", "the cache is taken when the model is loaded, for num_ctx times parallel tokens"),
        ("tensor_parallel_size pipeline_parallel_size data_parallel_size split_mode device_map",
         "devices share out layers, by tensor_split; several engines are `serve --replicas`"),
        ("dtype torch_dtype quantization load_format",
         "weights have the type that their file has; `ollama-engine quantize` writes a file with another"),
        ("trust_remote_code tokenizer tokenizer_mode chat_format chat_handler",
         "tokenizer and chat template are in the model's file, which has no code; template takes another"),
        ("do_sample", "temperature 0 takes the most probable token, and above 0 tokens are drawn"),
        ("num_beams use_beam_search beam_width length_penalty",
         "there is no beam search; best_of finds the most probable of several answers"),
        ("stop_token_ids",
         "stop ends an answer at a text; chunks of a stream have their tokens, and leaving the loop ends the answer"),
        ("ignore_eos min_tokens allowed_token_ids bad_words",
         "logit_bias bans tokens (-inf), and logits_processors may change any logit"),
        ("stopping_criteria", "leave the loop over a stream, which ends the request"),
        ("logits_all output_scores", "logits(prompt) has those of a prompt, and logprobs are of an answer's tokens"),
        ("rope_freq_base rope_freq_scale rope_scaling rope_scaling_type kv_overrides override_kv hf_overrides",
         "the model is computed as its file says"),
        ("use_mlock mlock numa low_vram", "weights are mapped or copied (mmap), not locked or bound to a node"),
        ("options", "each is a keyword argument of its own, such as temperature=0"),
        ("keep_alive", "the model stays loaded until the Engine is closed"),
        ("embedding embeddings is_embedding_model", "any model embeds: call embed"),
        ("echo", "an answer's text is without its prompt; prompt_logprobs scores the prompt"),
        ("verbose", "the logger ollama_engine says what happens: logging, or OLLAMA_ENGINE_LOG for programs"),
    )
    for name in names.split()
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
        return UnknownOptionError(f"{said}; it belongs in {home.format(name)}")
    return UnknownOptionError(f"{said}; did you mean {home.format(likely) if home else likely}?")


def meant(name: str, known: list[str]) -> str | None:
    """The known option that is probably meant: by its name in another engine, or by a similar name; or None."""
    plain = name.lower().replace("-", "_")
    target = ALIASES.get(plain, plain)
    for candidate in (plain, target, *(option for option in known if ALIASES.get(option) == target)):
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
