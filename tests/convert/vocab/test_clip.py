"""Vocabularies of CLIP, SigLIP and SigLIP 2 -> GGUF -> our tokenizer: the ids of their own tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers

from ollama_engine.convert.clip import siglip_text_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.tokenizer import Tokenizer, from_metadata
from ollama_engine.tokenizer.bpe import gpt2_alphabet
from tests.convert.vocab.exporting import export, exported_tokenizer
from tests.tokenizer.corpus import nasty_texts, prose, wild_texts
from tests.tokenizer.vocabs import train_spm

CORPUS = [prose(20000), *nasty_texts(1500, seed=7)]
START, END = "<|startoftext|>", "<|endoftext|>"
WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
EXTRA = ("A photo of a CAT, two dogs' tails & 12 birds!", "ΣΊΣΥΦΟΣ ÀÉ e\u0301 İ", "it's I'LL", "", " ", "\n a\tb  c ")


def clip_tokenizer() -> tokenizers.Tokenizer:
    """Merges that were learnt, over the alphabet of OpenAI's files: each byte, and each byte at the end of a word."""

    def piped(model: models.BPE) -> tokenizers.Tokenizer:
        made = tokenizers.Tokenizer(model)
        steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        made.normalizer = normalizers.Sequence(steps)
        split = pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True)
        made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        return made

    learnt = piped(models.BPE(end_of_word_suffix="</w>"))
    learnt.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=900, end_of_word_suffix="</w>",
                                                           show_progress=False))  # fmt: skip
    merges = [tuple(merge) for merge in json.loads(learnt.to_str())["model"]["merges"]]
    alphabet = [chr(code) for code in gpt2_alphabet()]
    texts = [*alphabet, *(f"{c}</w>" for c in alphabet), *("".join(merge) for merge in merges), START, END]
    vocab = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    made = piped(models.BPE(vocab, merges, unk_token=END, end_of_word_suffix="</w>", continuing_subword_prefix=""))
    made.add_special_tokens([START, END])
    made.post_processor = processors.RobertaProcessing((END, vocab[END]), (START, vocab[START]))
    return made


def test_clip(tmp_path: Path) -> None:
    theirs = clip_tokenizer()
    values = json.loads(theirs.to_str())
    files = {"tokenizer.json": values, "tokenizer_config.json": {"bos_token": START, "eos_token": END}}
    ours = exported_tokenizer(tmp_path, files, theirs.get_vocab_size())
    for text in [*wild_texts(seed=5), *EXTRA, prose(3000, seed=3)]:
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)
    ids = ours.encode("Two cats!", add_special=False)
    assert ours.decode(ids) == "two cats ! ", "a space stands behind each word"


def siglip(folder: Path, files: dict[str, Any], n_vocab: int) -> Tokenizer:
    """Our tokenizer of a folder, with the keys that the converter adds."""
    made = export(folder, files, n_vocab)
    more = siglip_text_keys(Config({}, str(folder / "source" / "config.json")), {"n_ctx": 64})
    return from_metadata({**{f"tokenizer.ggml.{key}": value for key, value in made.items()}, **more})


@pytest.fixture(scope="module")
def spiece() -> bytes:
    model = train_spm(CORPUS, 900, model_type="unigram", byte_fallback=False, normalization_rule_name="nmt_nfkc",
                      remove_extra_whitespaces=True, hard_vocab_limit=False)  # fmt: skip
    data: bytes = model.serialized_model_proto()
    return data


NAMES = {"pad_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "SiglipTokenizer"}


def test_siglip_reads_no_punctuation(spiece: bytes, tmp_path: Path) -> None:
    """Small letters, single spaces, no punctuation, and an end token."""
    ours = siglip(tmp_path, {"spiece.model": spiece, "tokenizer_config.json": NAMES}, 900)
    plain = ours.encode("hello world its here")
    assert plain[-1] == ours.eos_id
    assert ours.encode(" Hello,\tWORLD! It's  (here)... ")[-len(plain) :] == plain
    library = sentencepiece.SentencePieceProcessor(model_proto=spiece)
    assert plain[:-1] == library.encode("hello world its here")


@pytest.mark.reference
def test_siglip_live(spiece: bytes, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="which that tokenizer wants")
    theirs_of = pytest.importorskip("transformers").SiglipTokenizer
    (tmp_path / "spiece.model").write_bytes(spiece)
    theirs = theirs_of(str(tmp_path / "spiece.model"))
    ours = siglip(tmp_path, {"spiece.model": spiece, "tokenizer_config.json": NAMES}, 900)
    for text in [*wild_texts(seed=5), *EXTRA, prose(3000, seed=3)]:
        plain = text.replace("\0", "").replace("<", "")  # where SentencePiece ends a text; special tokens
        # The library adds scores in another order, so that ways of the same score may change places.
        assert sorted(ours.encode(plain)) == sorted(theirs(plain).input_ids), repr(plain)


def test_siglip_2_reads_small_letters(tmp_path: Path) -> None:
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    theirs = tokenizers.Tokenizer(model)
    theirs.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "▁")])
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials, limit_alphabet=200, show_progress=False)
    theirs.train_from_iterator([line for text in CORPUS for line in text.split("\n")], trainer)
    theirs.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    values = json.loads(theirs.to_str())
    values["added_tokens"] = [token for token in values["added_tokens"] if token["content"] in specials[:4]]
    names = {"pad_token": "<pad>", "eos_token": "<eos>"}
    files = {"tokenizer.json": values, "tokenizer_config.json": names}
    ours = siglip(tmp_path, files, theirs.get_vocab_size())
    theirs = tokenizers.Tokenizer.from_str(json.dumps(values))
    for text in EXTRA:
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)
