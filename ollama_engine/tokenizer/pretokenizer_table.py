"""The table of pre-tokenizers: `tokenizer.ggml.pre` -> the rules that split a text into pieces before merging.

Expressions are those of the models' own tokenizers where they are known, in the syntax of the `regex` library; the
list of names is llama.cpp's. A stage splits every piece of the stage before; text that an expression does not match
stays a piece of its own.

Known differences. Ours follow the original (Hugging Face) tokenizer where llama.cpp approximates it:
- Contractions match case-insensitively in full Unicode: U+017F LONG S after an apostrophe counts as "s".
- tekken, gpt-4o, kimi-k2, youtu, tiny_aya and relatives distinguish upper and lower case and count marks as letters
  (llama.cpp takes any letter but ASCII a-z or A-Z, and breaks most words at combining marks).
- kimi-k2's Han is the whole script, with radicals and U+3005, not ranges of ideographs.
- tiny_aya and afmoe part groups of digits from the text around them, which changes how spaces before a number split.
  tiny_aya groups only decimal digits, and only where the number ends at a word boundary.
- superbpe counts decimal digits of every script, not only ASCII.
- deepseek-llm and deepseek-coder compare white space as itself: U+2028 and U+3000 fall into their character ranges.
Where only llama.cpp's form is known (default, falcon, viking, ...), this table uses it. A character newer than the
Unicode version of one side is unassigned there, and may split differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from ollama_engine.errors import UnsupportedModelError

__all__ = ["PreTokenizerSpec", "Rule", "Stage", "find_spec", "pretokenizer_names"]


class Rule(Enum):
    """How a stage splits by its expression."""

    ISOLATE = "isolate"
    """Matches become pieces; so does what lies between them."""
    FIND = "find"
    """As ISOLATE, for an expression whose matches cover the whole text."""
    KEEP = "keep"
    """Matches become pieces; the rest is dropped."""
    GROUP = "group"
    """Matches are runs of digits, split into threes from the right."""
    GROUP_WORD = "group_word"
    """As GROUP, only for runs that end at a word boundary."""
    CUT = "cut"
    """As GROUP, but the outer threes stay joined to the text around the run."""


@dataclass(frozen=True)
class Stage:
    expression: str
    rule: Rule = Rule.ISOLATE


@dataclass(frozen=True)
class PreTokenizerSpec:
    """One row of the table."""

    name: str
    stages: tuple[Stage, ...]
    add_bos: bool = False
    """Default for files without `add_bos_token`."""
    force_bos: bool = False
    """BOS is added whatever the file says."""
    ignore_merges: bool = False
    """A piece that is a token becomes that token without merging."""
    byte_level: bool = True
    """Tokens spell bytes with GPT-2's alphabet; else they are plain UTF-8."""
    escape_spaces: bool = False
    """Tokens spell a space as U+2581."""
    whole_newlines: bool = False
    """A run of newlines that is a token becomes that token without merging."""
    end_of_word: bool = False
    """A token that ends a piece has "</w>" behind its text, and text is normalized to NFC first (CLIP)."""


# -- building blocks ---------------------------------------------------------------------------------------------------

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HAN_KANA = "[一-龥぀-ゟ゠-ヿ]+"
ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
LOWER_CONTRACTION = r"'s|'t|'re|'ve|'m|'ll|'d"
GPT2_WORDS = LOWER_CONTRACTION + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str, *, contraction: str = CONTRACTION + "|", spaces: str = SPACES) -> str:
    """The cl100k shape (OpenAI's tiktoken): contractions, words, runs of digits, punctuation, spaces."""
    return rf"{contraction}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"


def _cased_words(suffix: str, digits: str, tail: str = r"[\r\n/]*", upper: str = UPPER, lower: str = LOWER) -> str:
    """The o200k shape: a word ends where upper case follows lower case."""
    prefix = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{prefix}{upper}*{lower}+{suffix}|{prefix}{upper}+{lower}*{suffix}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{SPACES}"
    )


def _deepseek3_words(tail: str, newlines: str) -> str:
    return (
        rf"{ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+{tail}"
        rf"|{newlines}|\s+(?!\S)|\s+"
    )


def _find(expression: str) -> Stage:
    return Stage(expression, Rule.FIND)


GPT2 = _find(GPT2_WORDS)
LLAMA3 = _find(_words(r"\p{N}{1,3}"))
QWEN2 = _find(_words(r"\p{N}"))
O200K = _find(_cased_words(CONTRACTION + "?", r"\p{N}{1,3}"))
NEWLINE_RUNS = _find(r"[^\n]+|\n+")
BLOOM = Stage(r" ?[^(\s|.,!?…。，、।۔،)]+")
DEEPSEEK3 = (Stage(r"\p{N}{1,3}"), Stage(HAN_KANA), Stage(_deepseek3_words(r"[\r\n]*", r"\s*[\r\n]+")))
CHINESE_RUNS = Stage("[一-龥ࠀ-一가-퟿]+")
# Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, ...: the letters that have case, as of the model's release.
CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ"
    "-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-"
    "ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
ASIAN_RUNS = Stage(
    "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"  # an ideograph or a letter of a script without spaces
)

# -- the table ---------------------------------------------------------------------------------------------------------


def _rows(names: str, *stages: Stage, **flags: bool) -> list[PreTokenizerSpec]:
    return [PreTokenizerSpec(name, stages, **flags) for name in names.split()]


@cache
def _table() -> dict[str, PreTokenizerSpec]:
    rows = [
        *_rows(
            "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
            LLAMA3,
            add_bos=True,
            ignore_merges=True,
        ),
        *_rows("dbrx smaug-bpe chatglm-bpe", LLAMA3),
        *_rows("glm4 glm5", LLAMA3, ignore_merges=True),
        *_rows(
            "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
            QWEN2,
        ),
        *_rows("ufakzeka", _find(_words(r"\p{N}", contraction=""))),
        *_rows(
            "qwen35",
            _find(
                rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
            ),
        ),
        *_rows(
            "gpt-2 phi-2 mpt olmo jais trillion granite-docling jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 "
            "mellum modern-bert exaone4 jina-v1-en jina-v2-code roberta-bpe",
            GPT2,
        ),
        *_rows("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", Stage(r"\p{N}"), GPT2),
        *_rows("falcon", Stage(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, Stage("[0-9][0-9][0-9]")),
        *_rows("default", Stage(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, Stage(r"\p{N}+"), Stage("[0-9][0-9][0-9]")),
        *_rows("tekken", _find(_cased_words("", r"\p{N}")), add_bos=True, ignore_merges=True),
        *_rows("gpt-4o llama4 kanana2 talkie minimax-m2", O200K),
        *_rows("granite-embed-multi-97m", O200K, ignore_merges=True),
        *_rows("tiny_aya cohere2moe", Stage(r"\d+", Rule.GROUP_WORD), O200K),
        *_rows("deepseek-v3 hunyuan-dense joyai-llm hy_v4", *DEEPSEEK3),
        *_rows("spark2_5", *DEEPSEEK3[:2], Stage(_deepseek3_words("", r"[\r\n]")), Stage(r"\p{N}")),
        *_rows("afmoe", Stage(r"\p{N}+", Rule.GROUP), ASIAN_RUNS, DEEPSEEK3[2]),
        *_rows(
            "deepseek-llm",
            Stage(r"[\r\n]"),
            Stage(rf"\s?[{CASED_LETTERS}]+"),
            Stage(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Stage(r"(?<!\s)\s+\Z"),  # the look-behind avoids a new search at each space of a run, which is quadratic
            CHINESE_RUNS,
            Stage(r"\p{N}+"),
        ),
        *_rows(
            "deepseek-coder", Stage(r"[\r\n]"), Stage(r"\s?\p{L}+"), Stage(r"\s?\p{P}+"), CHINESE_RUNS, Stage(r"\p{N}")
        ),
        *_rows(
            "youtu",
            Stage(f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{HAN_KANA}"),
            _find(_cased_words(CONTRACTION + "?", r"\p{N}")),
            ignore_merges=True,
        ),
        *_rows(
            "kimi-k2",
            _find(
                r"(?V1)\p{Han}+|"  # V1: set operations
                + _cased_words(
                    CONTRACTION + "?",
                    r"\p{N}{1,3}",
                    tail=r"[\r\n]*",
                    upper=UPPER[:-1] + r"&&[^\p{Han}]]",
                    lower=LOWER[:-1] + r"&&[^\p{Han}]]",
                )
            ),
        ),
        *_rows("superbpe", Stage(r"\p{N}+"), Stage(r"\d+", Rule.CUT)),
        *_rows("bailingmoe bailingmoe2 llada-moe", _find(_words(r"\p{N}", spaces=r"\s*[\r\n]|\s+(?!\S)|\s+"))),
        *_rows(
            "seed-coder",
            _find(rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"),
        ),
        *_rows("laguna", NEWLINE_RUNS, QWEN2),
        *_rows(
            "exaone-moe",
            _find(
                rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
            ),
        ),
        *_rows("minicpm5", Stage(r"\p{N}{1,3}"), _find(_words(r"\p{N}+")), ignore_merges=True),
        *_rows(
            "jais-2",
            _find(
                _words(
                    r"\p{N}{1,3}",
                    spaces=r"\s*[\r\n]+|"
                    + "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
                    + r"|\s",
                )
            ),
        ),
        *_rows(
            "chameleon",
            Stage("<sentinel:[0-9]+>"),
            Stage("IMGIMG[A-I]{1,4}Z"),
            Stage("[\t\n]|    |  "),
            Stage(r"\p{N}"),
            Stage(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
            add_bos=True,
        ),
        *_rows("poro-chat bloom gpt3-finnish", BLOOM),
        *_rows("viking", BLOOM, Stage(r"\p{N}")),
        *_rows(
            "gemma4 granite-embed-multi-311m",
            NEWLINE_RUNS,
            force_bos=True,
            byte_level=False,
            escape_spaces=True,
            whole_newlines=True,
        ),
        *_rows("sarvam-moe", NEWLINE_RUNS, byte_level=False, escape_spaces=True),
        *_rows(
            "clip",
            Stage(
                rf"<\|startoftext\|>|<\|endoftext\|>|{LOWER_CONTRACTION}|\p{{L}}+|\p{{N}}|[^\s\p{{L}}\p{{N}}]+",
                Rule.KEEP,
            ),
            GPT2,
            end_of_word=True,
        ),
        *_rows("whitespace", Stage(r"\S+", Rule.KEEP), byte_level=False),
    ]
    return {row.name: row for row in rows}


# Files made by Ollama say "default" (or nothing) where its model code hard-codes the pre-tokenizer of the architecture.
BY_ARCHITECTURE = {
    "mistral3": "tekken",
    "gptoss": "gpt-4o",
    "llama4": "llama4",
    "mllama": "llama-bpe",
    "qwen2": "qwen2",
    "qwen25vl": "qwen2",
    "qwen3": "qwen2",
    "qwen3moe": "qwen2",
    "qwen3vl": "qwen2",
    "qwen3vlmoe": "qwen2",
}


def pretokenizer_names() -> list[str]:
    return sorted(_table())


def find_spec(pre: str, architecture: str = "", model: str = "gpt2") -> PreTokenizerSpec:
    """The row for `tokenizer.ggml.pre`. A missing or "default" name is replaced by the architecture's where it has one.

    Raises UnsupportedModelError, which lists the known names.
    """
    if model == "whitespace":
        pre = "whitespace"
    elif pre in ("", "default"):
        pre = BY_ARCHITECTURE.get(architecture, "default")
    table = _table()
    if pre not in table:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre is {pre!r}, which this version does not know; supported: {', '.join(sorted(table))}"
        )
    return table[pre]
