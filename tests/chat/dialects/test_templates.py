"""Published templates: which dialect each is of, and that parsers read what templates write."""

from __future__ import annotations

import pytest

from ollama_engine.chat.dialects import DIALECTS, detect
from tests.chat import real_templates
from tests.chat.dialects.reading import events, joined, read
from tests.chat.dialects.round_trips import DEFINITIONS, answers
from tests.support.suite import slow_except

# Said by hand, from each template's own text.
EXPECTED = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed-oss",
    "Cohere2MoE": "command-r7b",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r-plus",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r7b",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "GigaChat3-10B-A1.8B": "gigachat",
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "HuggingFaceTB-SmolLM3-3B": "smollm3",
    "Kimi-K2-Instruct": "kimi-k2",
    "Kimi-K2-Thinking": "kimi-k2",
    "Kimi-K3": "kimi-k3",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax-m1",
    "MiniMax-M2": "minimax-m2",
    "MiniMax-M3": "minimax-m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-tekken",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3-coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron-v2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen3-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-v3",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai-DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai-DeepSeek-V4": "deepseek-v3.2",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek-v3.2",
    "fireworks-ai-llama-3-firefunction-v2": "phi4",
    "google-gemma-2-2b-it": "gemma",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "llama-cpp-deepseek-r1": "deepseek-v3",
    "llama-cpp-rwkv-world": "json",
    "meetkai-functionary-medium-v3.1": "functionary-v3.1",
    "meetkai-functionary-medium-v3.2": "functionary-v3.2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "microsoft-Phi-3.5-mini-instruct": "json",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral-tekken",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi-k2",
    "muse-glimmer": "muse",
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "tencent-Hy3": "hunyuan3",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral-tekken",
    "upstage-Solar-Open-100B": "solar",
}

# Templates that write no calls, or not those of this conversation in the sandbox: tests/chat/dialects/ has their
# formats from other sources.
WITHOUT_CALLS = {
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",  # the same format as moonshotai-Kimi-K2
    "Kimi-K2-Thinking",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",  # calls only where content is null
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-deepseek-r1",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
# These write content where the model writes reasoning.
CONTENT_AS_REASONING = {"NVIDIA-Nemotron-Nano-v2", "openai-gpt-oss-120b"}


def test_every_template_is_in_the_table() -> None:
    assert set(real_templates.sources()) == set(EXPECTED)


def test_every_template_is_of_the_dialect_that_its_text_shows() -> None:
    found = {name: detect(source).name for name, source in real_templates.sources().items()}
    assert found == EXPECTED


@pytest.mark.parametrize(
    "name", slow_except(EXPECTED, "Qwen-Qwen3-0.6B", "Qwen3-Coder", "openai-gpt-oss-120b", "LFM2.5-8B-A1B")
)
def test_parsers_read_what_templates_write(name: str) -> None:
    source = real_templates.sources()[name]
    dialect = detect(source)
    found = answers(source, dialect)
    for told, text, opened in found:
        answer = read(dialect, text, tools=DEFINITIONS, reasoning_open=opened)
        if name in CONTENT_AS_REASONING and told.content and not told.reasoning:
            assert answer.content in ("", told.content)
        else:
            assert (answer.content.strip(), answer.reasoning) == (told.content, told.reasoning), text
        assert answer.named == told.calls, text
        assert not answer.malformed
        for call in answer.calls:  # in the order of the text; some templates sort
            assert list(call.arguments) == sorted(call.arguments, key=text.index)
    assert any(told.calls for told, _, _ in found) == (name not in WITHOUT_CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_any_cut_in_two_gives_the_same_events(name: str) -> None:
    source = real_templates.sources()[name]
    dialect = detect(source)
    for _, text, opened in answers(source, dialect)[:2]:
        whole = joined(events(dialect, [text], DEFINITIONS, opened))
        for at in range(1, len(text)):
            assert joined(events(dialect, [text[:at], text[at:]], DEFINITIONS, opened)) == whole


def test_no_text_that_ends_a_turn_is_one_that_the_parser_waits_for() -> None:
    for name, source in real_templates.sources().items():
        dialect = detect(source)
        awaited = {*dialect.sections, *dialect.dropped, *(end for _, end in dialect.thinking)}
        assert not awaited & set(dialect.stops()), name


def test_templates_say_which_models_think() -> None:
    """Those without reasoning, by hand: templates that neither ask for it, nor take it out of earlier answers."""
    families = (
        *("command-r-plus", "GigaChat3", "Kimi-K2-Instruct", "LFM2-8B", "LFM2.5-Instruct", "MiMo-VL", "MiniMax-M1"),
        *("Small-3.2", "Hermes-", "Qwen2.5-7B", "Qwen3-Coder", "firefunction", "gemma-2", "granite-4", "functionary"),
        *(
            "Llama-3.1-8B-Instruct",
            "Llama-3.2-3B",
            "Llama-3.3-70B",
            "Phi-3.5",
            "Nemo-Instruct",
            "moonshotai",
            "Devstral",
        ),
    )
    for name, source in real_templates.sources().items():
        assert detect(source).thinks != any(family in name for family in families), name


def test_each_dialect_is_that_of_a_template() -> None:
    assert set(DIALECTS) - set(EXPECTED.values()) == {"text"}
