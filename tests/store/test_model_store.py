from __future__ import annotations

import base64
import json
import os
import threading
import time
from pathlib import Path

import pytest

from ollama_engine.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from ollama_engine.store import ModelName, ModelStore
from tests.store.layout import files, put_blob, put_model
from tests.support.suite import scaled
from tests.support.waiting import join

LIBRARY = "registry.ollama.ai/library"
GGUF = b"GGUF and so on"
PNG = b"\x89PNG\r\n\x1a\n and so on"


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path)


def name(text: str) -> ModelName:
    return ModelName.parse(text)


def test_a_store_that_ollama_wrote(store: ModelStore) -> None:
    digest = put_model(
        store.folder,
        f"{LIBRARY}/llama3.2/latest",
        [
            ("model", GGUF),
            ("template", b"{{ .Prompt }}"),
            ("system", b"Be brief."),
            ("params", b'{"stop":["a","b"],"temperature":0.5}'),
            ("messages", b'[{"role":"user","content":"hi"}]'),
            ("license", b"one"),
            ("license", b"two"),
            ("projector", b"GGUF that sees"),
            ("adapter", b"GGUF that adapts"),
        ],
        modified=1000,
    )
    put_model(store.folder, "hf.co/Org/Repo-GGUF/Q4_K_M", [("model", GGUF)], modified=2000)
    assert [model.name for model in store.list()] == ["hf.co/Org/Repo-GGUF:Q4_K_M", "llama3.2:latest"]
    found = store.find("llama3.2")
    assert (found.name, found.digest, found.modified) == ("llama3.2:latest", digest, 1000)
    assert found.model_path.read_bytes() == GGUF
    assert found.projector_path is not None
    assert found.projector_path.read_bytes() == b"GGUF that sees"
    assert [path.read_bytes() for path in found.adapter_paths] == [b"GGUF that adapts"]
    assert (found.template, found.system) == ("{{ .Prompt }}", "Be brief.")
    assert found.parameters == {"stop": ["a", "b"], "temperature": 0.5}
    assert found.messages == ({"role": "user", "content": "hi"},)
    assert found.licenses == ("one", "two")
    assert found.config["model_family"] == "llama"
    assert found.size == sum(path.stat().st_size for path in (store.folder / "blobs").iterdir())


@pytest.mark.parametrize("messages", [
    b'[{"content":"hi"}]', b'[{"role":1,"content":"hi"}]', b'["hi"]', b'[{"role":"user","content":[1]}]',
    b'[{"role":"user","images":["/etc/hostname"]}]', b'[{"role":"user","images":["hostname"]}]',
    b'[{"role":"user","images":["file:///etc/hostname"]}]', b'[{"role":"user","images":"aGk="}]',
], ids=str)  # fmt: skip
def test_messages_that_are_none(store: ModelStore, messages: bytes) -> None:
    put_model(store.folder, f"{LIBRARY}/m/latest", [("model", GGUF), ("messages", messages)])
    with pytest.raises(ModelFormatError, match=r"blob sha256:[0-9a-f]+ holds"):
        store.find("m")


def test_images_of_messages_are_files_in_base64(store: ModelStore) -> None:
    """Of whoever made the model: as paths they would have files of this machine read."""
    picture = base64.b64encode(PNG).decode()
    for number, image in enumerate((picture, f"data:image/png;base64,{picture}")):
        message = {"role": "user", "content": "", "images": [image]}
        put_model(
            store.folder, f"{LIBRARY}/m{number}/latest", [("model", GGUF), ("messages", json.dumps([message]).encode())]
        )
        assert store.find(f"m{number}").messages == (message,)


@pytest.mark.parametrize(
    "written", ["Llama3.2", "LLAMA3.2:LATEST", "library/llama3.2", "registry.ollama.ai/Library/lLama3.2"]
)
def test_case_does_not_matter(store: ModelStore, written: str) -> None:
    put_model(store.folder, f"{LIBRARY}/lLama3.2/Latest", [("model", GGUF)])
    assert store.find(written).name == "lLama3.2:Latest"
    store.copy(name(written), name("LLAMA3.2"))
    assert len(store.entries()) == 1, "a name that is there in another case is the same name"
    store.delete(name(written))
    assert files(store.folder) == set()


def test_what_is_no_manifest_is_left_alone(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/good/latest", [("model", GGUF)])
    manifests = store.folder / "manifests"
    (manifests / ".DS_Store").write_bytes(b"\0")
    (manifests / LIBRARY / "good" / ".DS_Store").write_bytes(b"\0")
    (manifests / LIBRARY / "bad").mkdir()
    (manifests / LIBRARY / "bad" / "latest").write_bytes(b"{")
    (manifests / LIBRARY / "deep" / "er").mkdir(parents=True)
    (manifests / LIBRARY / "deep" / "er" / "latest").write_bytes(b"{}")
    assert [model.name for model in store.list()] == ["good:latest"]
    assert [path.parent.name for path, _ in store.broken()] == ["bad"]
    with pytest.raises(ModelFormatError, match="bad/latest: this is no manifest"):
        store.find("bad")
    store.delete(name("bad"))
    assert store.broken() == []
    assert store.find("good")


@pytest.mark.parametrize("manifest", [
    b"", b"[]", b"null", b"{}", b'{"layers":[]}', b'{"config":{"digest":"x","size":1},"layers":[]}',
    b'{"config":{"digest":"sha256:' + b"0" * 64 + b'","size":-1},"layers":[]}',
    b'{"config":{"digest":"sha256:../../etc/passwd","size":1},"layers":[]}',
    b'{"config":{"digest":"","size":0},"layers":[{"digest":5,"size":1}]}', b"[" * 100_000,
])  # fmt: skip
def test_damaged_manifests(store: ModelStore, manifest: bytes) -> None:
    path = store.folder / "manifests" / LIBRARY / "bad" / "latest"
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest)
    assert store.entries() == []
    with pytest.raises(ModelFormatError, match="bad/latest"):
        store.find("bad")


def test_a_damaged_blob_is_named_and_not_served(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/m/latest", [("model", GGUF)])
    found = store.find("m")
    entry = store.entry(name("m"))
    (layer,) = entry.manifest.of_kind("model")
    found.model_path.write_bytes(GGUF[::-1])
    store.find("m")  # the size is right: only reading all of it shows
    with pytest.raises(ModelFormatError, match=f"{layer.digest} is damaged: its content"):
        store.blobs.check(layer)
    found.model_path.write_bytes(GGUF[:3])
    with pytest.raises(
        ModelFormatError, match=rf"model 'm:latest': blob {layer.digest} is damaged: it has 3 bytes, expected 14"
    ):
        store.find("m")
    found.model_path.unlink()
    with pytest.raises(ModelFormatError, match=f"{layer.digest} is missing"):
        store.find("m")
    with pytest.raises(ModelFormatError, match="is missing"):
        store.copy(name("m"), name("other"))


def test_weights_in_other_formats(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/mlx/latest", [("tensor", b"x"), ("json", b"{}")])
    assert store.list() == []
    assert [entry.name.model for entry in store.entries()] == ["mlx"]
    with pytest.raises(UnsupportedModelError, match="no GGUF file"):
        store.find("mlx")


def test_delete_keeps_what_others_use(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/a/latest", [("model", GGUF), ("system", b"a")])
    put_model(store.folder, f"{LIBRARY}/b/latest", [("model", GGUF), ("system", b"b")])
    later = time.time() + 5
    for entry in ("a", "b"):
        os.utime(store.folder / "manifests" / LIBRARY / entry / "latest", (later, later))
    store.delete(name("a"))
    assert store.find("b").system == "b"
    assert len(files(store.folder)) == 4
    with pytest.raises(ModelNotFoundError, match="model 'a:latest' not found"):
        store.delete(name("a"))
    store.delete(name("b"))
    assert files(store.folder) == set()
    assert not any(path.is_dir() for path in (store.folder / "manifests").iterdir())


def test_delete_spares_blobs_that_somebody_has_asked_for(store: ModelStore) -> None:
    """Between the question whether a blob is there and the model made of it, another caller deletes a model."""
    put_model(store.folder, f"{LIBRARY}/a/latest", [("model", GGUF)], modified=time.time() - 100)
    (layer,) = store.entry(name("a")).manifest.of_kind("model")
    for blob in (store.folder / "blobs").iterdir():
        os.utime(blob, (1000, 1000))
    assert store.blobs.claim(layer.digest) == len(GGUF)
    assert store.blobs.path(layer.digest).stat().st_mtime == 1000, "engines have mapped it, and look at its time"
    store.delete(name("a"))
    assert files(store.folder) == {f"blobs/{layer.digest.replace(':', '-')}"}
    assert store.prune().files == 0
    assert store.prune(claimed=0).files == 1
    assert store.blobs.claim(layer.digest) is None


def test_nothing_is_removed_while_a_manifest_cannot_be_read(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/a/latest", [("model", GGUF)])
    unknown = store.folder / "manifests" / LIBRARY / "b" / "latest"
    unknown.parent.mkdir()
    unknown.write_bytes(b"damaged")
    put_blob(store.folder, b"nobody's, as far as is known")
    assert store.prune(claimed=0, partial=0).files == 0
    store.delete(name("a"))
    assert len(list((store.folder / "blobs").iterdir())) == 3
    unknown.unlink()
    assert store.prune(claimed=0).files == 3


def test_prune(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/a/latest", [("model", GGUF)])
    kept = files(store.folder)
    blobs = store.folder / "blobs"
    left = [blobs / ("sha256-" + "0" * 64), blobs / ("sha256-" + "0" * 64 + "-partial"), blobs / "sha256-123456789",
            blobs / ("sha256-" + "0" * 64 + "-partial-3"), blobs / ".0123.part",
            store.folder / "manifests" / LIBRARY / "a" / ".0123.part"]  # fmt: skip
    for path in left:
        path.write_bytes(b"12345")
    (blobs / "README").write_text("not ours")
    assert store.prune().files == 0, "all are young"
    day_ago = time.time() - 86400
    for path in left:
        os.utime(path, (day_ago, day_ago))
    assert store.prune().size == 10, "a download may be resumed for a week"
    assert store.prune(partial=0).files == 4
    assert files(store.folder) == kept | {"blobs/README"}


def test_a_name_taken_again_frees_the_old_blobs(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/a/latest", [("model", b"GGUF old")])
    put_model(store.folder, f"{LIBRARY}/b/latest", [("model", b"GGUF new")])
    later = time.time() + 5
    os.utime(store.folder / "manifests" / LIBRARY / "a" / "latest", (later, later))
    store.copy(name("b"), name("a"))
    assert store.find("a").model_path == store.find("b").model_path
    assert len(files(store.folder)) == 4


def test_threads_that_make_and_delete_at_once(store: ModelStore) -> None:
    """Two names of one model come and go: whichever is listed is whole, and at the end nothing is left."""
    put_model(store.folder, f"{LIBRARY}/seed/latest", [("model", GGUF)])
    errors: list[BaseException] = []

    def work(own: str) -> None:
        try:
            for _ in range(scaled(20, quick=4)):
                store.copy(name("seed"), name(own))
                assert store.find(own).model_path.read_bytes() == GGUF
                store.delete(name(own))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"m{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert not errors
    assert [model.name for model in store.list()] == ["seed:latest"]


def test_the_folder_that_a_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_MODELS", "~/models")
    assert ModelStore().folder == tmp_path / "models"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", "~nobody2/models")
    with pytest.raises(FileNotFoundError, match=f"write {tmp_path}/~nobody2/models for a folder here"):
        ModelStore()


def test_reading_writes_nothing(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "none")
    assert (store.list(), store.entries(), store.broken()) == ([], [], [])
    with pytest.raises(ModelNotFoundError):
        store.find("a")
    assert store.blobs.claim("sha256:" + "0" * 64) is None
    assert not store.folder.exists()


def test_the_manifest_we_write_is_ollamas(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/a/latest", [("model", GGUF)])
    store.copy(name("a"), name("Host.example:5000/me/b:v1"))
    path = store.folder / "manifests" / "Host.example:5000" / "me" / "b" / "v1"
    assert json.loads(path.read_bytes())["schemaVersion"] == 2
    assert path.read_bytes() == (store.folder / "manifests" / LIBRARY / "a" / "latest").read_bytes()
