"""Prefix store: keys and values of prompts on disk, in blocks of tokens, so that a restart does not forget them.

block_keys.py       a prompt to the keys of its blocks: pure
block_file.py       one block in one file: format, checks
checksum.pyx        by which damage is found
block_folder.py     the files: found, written, bounded in bytes; several processes may share a folder
stored_prefix.py    which blocks a prompt can go on from, and which are still to be written: pure
step_budget.py      how long a step may be disturbed by writing
prefix_store.py     PrefixStore: threads that read and write, beside the engine's

The engine's side, which copies between cells and blocks, is `runner/core/stored_prefixes.py`: reads and writes.
"""
