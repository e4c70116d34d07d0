"""Files of the pinned source distribution that tests read. They are not committed here."""

from __future__ import annotations

import functools
import tarfile
import tempfile
from pathlib import Path

import pytest

from bench import peer_tools
from tests.support import suite
from tests.support.cached_folder import put

INNER = "vendor/llama.cpp/models"


@functools.cache
def pinned(name: str, pattern: str, n_files: int) -> Path:
    """The folder where so many files of llama.cpp's `models` are that match, "templates/*.jinja" for one.

    They lie beside the peer's sources, or in a folder `name` of their own, which the whole suite fills.
    """
    lock = peer_tools.load_fetch().read_lock(peer_tools.ROOT / "csrc/ggml/ggml.lock")
    cache = peer_tools.cache_folder(lock["sha256"])
    own = cache / name
    for found in ((cache / "source/models" / pattern).parent, own):
        if len(list(found.glob(Path(pattern).name))) == n_files:
            return found
    if not suite.exhaustive:
        pytest.skip(f"{name} of the pinned sources are not in the cache; make test-all downloads them")
    fetch = peer_tools.load_fetch()
    own.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=own.parent) as temp:
        try:
            archive = fetch.download(lock, Path(temp))
        except SystemExit as error:
            pytest.skip(f"the pinned sources cannot be downloaded: {str(error).splitlines()[0]}")
        fetch.verify(archive, lock["sha256"])
        partial = Path(temp) / name
        partial.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and Path(member.name).match(f"{INNER}/{pattern}"):
                    source = tar.extractfile(member)
                    assert source is not None
                    (partial / Path(member.name).name).write_bytes(source.read())
        put(partial, own)
    return own
