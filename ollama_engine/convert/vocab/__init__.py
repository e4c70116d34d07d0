"""Tokenizers as Hugging Face publishes them -> `tokenizer.*` metadata.

- `tokens`: the nouns, and the rules that all kinds share
- `bpe`, `sentencepiece`, `unigram`, `wordpiece`: one kind of tokenizer each
- `protobuf`: the wire format of tokenizer.model
- `pre`, `hf_splitting`, `probes`: which pre-tokenizer of our table splits text as a tokenizer.json does
- `special`: ids of special tokens, and which of them end a generation
- `chat`: the chat template
- `export`: all of it for one folder
"""
