"""Models of the Hugging Face Hub: `hf.co/org/repo:Q4_K_M` names a GGUF file of a repository by its quantization."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import huggingface_hub  # which imports its own modules when they are used

from ollama_engine.errors import EngineError, ModelNotFoundError, RegistryError
from ollama_engine.store.create import weights_config
from ollama_engine.store.manifest import CONFIG_TYPE, Layer, Manifest
from ollama_engine.store.model_store import ModelStore
from ollama_engine.store.names import ModelName
from ollama_engine.store.pull import fetch
from ollama_engine.store.registry import Registry
from ollama_engine.store.sources import SourceFile, is_part, joined_layer
from ollama_engine.store.transfers import Report, TransferProgress, TransferSettings, in_thread

__all__ = ["HubFile", "Repository", "choose_model", "choose_projector", "pull_from_hub"]

PREFERRED: Final = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")
"""Quantizations for the tag `latest`: the first that is there, else the smallest file's."""
JOINED_FROM: Final = "ollama_engine_joined_from"
"""A field of the config: the digests of the parts that a model was joined of."""
PREFERRED_PROJECTORS: Final = ("f16", "bf16", "f32")

_PART_END: Final = re.compile(r"-\d{5}(-of-\d{5}\.gguf)$")
_QUANT: Final = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|T?Q\d_\d|BF16|F16|F32|MXFP4\w*))(?=\.gguf$|[-.])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: its path, bytes, and SHA-256 as 64 hexadecimal digits."""

    path: str
    size: int
    sha256: str

    @property
    def quant(self) -> str:
        """The quantization in its name, in capitals; "" for none."""
        found = _QUANT.findall(self.path)
        return found[-1].upper() if found else ""


def choose_model(files: Sequence[HubFile], tag: str) -> tuple[HubFile, ...]:
    """The file that a tag means, by its quantization or name; all parts of a split one. Raises ModelNotFoundError."""
    models = [file for file in files if _is_gguf(file) and not _is_projector(file)]
    wanted = (
        [tag] if tag.lower() != "latest" else [*PREFERRED, *(f.quant for f in sorted(models, key=lambda f: f.size))]
    )
    for quant in wanted:
        for file in models:
            name = file.path.rpartition("/")[2].lower()
            if quant.lower() in (file.quant.lower(), name, name.removesuffix(".gguf")):
                return parts_of(file, models)
    there = ", ".join(sorted({file.quant or file.path for file in models})) or "no GGUF file at all"
    raise ModelNotFoundError(f"the repository has no GGUF file for {tag!r}; it has {there}")


def parts_of(file: HubFile, models: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """All parts of a split model, in order; of a whole one the file itself."""
    if not is_part(file.path):
        return (file,)
    begin, end = _PART_END.sub("", file.path), f"{_PART_END.search(file.path)[1]}"  # type: ignore[index]
    found = [each for each in models if each.path.endswith(end) and _PART_END.sub("", each.path) == begin]
    return tuple(sorted(found, key=lambda part: part.path))


def choose_projector(files: Sequence[HubFile]) -> HubFile | None:
    """The file of the part that reads images, if there is one."""
    projectors = sorted((file for file in files if _is_gguf(file) and _is_projector(file)), key=lambda file: file.path)
    for quant in PREFERRED_PROJECTORS:
        for file in projectors:
            if file.quant.lower() == quant:
                return file
    return projectors[0] if projectors else None


def _is_gguf(file: HubFile) -> bool:
    return file.path.lower().endswith(".gguf")


def _is_projector(file: HubFile) -> bool:
    return "mmproj" in file.path.rpartition("/")[2].lower()


class Repository(Registry):
    """A repository of the Hub, whose files are downloaded as a registry's blobs are.

    Args:
        name: host, organization, repository and quantization.
        settings: of transfers.
        endpoint: address of the Hub; huggingface_hub's (HF_ENDPOINT) where None.
    """

    def __init__(self, name: ModelName, settings: TransferSettings, *, endpoint: str | None = None) -> None:
        super().__init__(name, settings)
        self._api = huggingface_hub.HfApi(endpoint=endpoint)
        self._base = f"{self._api.endpoint}/v2/"  # tokens go to addresses that begin with what is before /v2/
        self._paths: dict[str, str] = {}
        token = self._api.token or huggingface_hub.get_token()
        if isinstance(token, str):
            self._authorization = f"Bearer {token}"

    def blob_url(self, layer: Layer) -> str:
        """Where a chosen file is read."""
        repository = f"{self.name.namespace}/{self.name.model}"
        return huggingface_hub.hf_hub_url(repository, self._paths[layer.digest], endpoint=self._api.endpoint)

    def files(self) -> list[HubFile]:
        """All files that are stored by their digests, as GGUF files are. Raises ModelNotFoundError, RegistryError."""
        repository = f"{self.name.namespace}/{self.name.model}"
        try:
            info = self._api.model_info(repository, files_metadata=True)
        except huggingface_hub.errors.RepositoryNotFoundError:  # a module that came with HfApi
            raise ModelNotFoundError(
                f"model '{self.name.short}' not found: no such repository, or it is private"
            ) from None
        except Exception as error:  # huggingface_hub's releases use several HTTP clients, each with its own errors
            raise RegistryError(f"{self._api.endpoint}: {type(error).__name__}: {error}") from error
        return [
            HubFile(file.rfilename, file.lfs.size, file.lfs.sha256)
            for file in info.siblings or ()
            if file.lfs is not None
        ]

    def layer_of(self, kind: str, file: HubFile) -> Layer:
        """The layer that a file will be."""
        layer = Layer.of(kind, f"sha256:{file.sha256}", file.size)
        self._paths[layer.digest] = file.path
        return layer


async def pull_from_hub(repository: Repository, store: ModelStore, report: Report) -> None:
    """Have a model of the Hub in the store, under the name that it was asked for by. Raises as `pull` does.

    The parts of a split model are joined to one file, and removed then.
    """
    report(TransferProgress("pulling manifest"))
    files = await in_thread(repository.files)
    parts = choose_model(files, repository.name.tag)
    layers = [repository.layer_of("model", part) for part in parts]
    projector = choose_projector(files)
    others = [] if projector is None else [repository.layer_of("projector", projector)]
    joined_from = [layer.digest for layer in layers] if len(layers) > 1 else []
    if joined_from:
        known = await in_thread(_is_joined, store, repository.name, joined_from, others)
        if known:
            report(TransferProgress("success"))
            return
    loop = asyncio.get_running_loop()

    def tell(progress: TransferProgress) -> None:
        loop.call_soon_threadsafe(report, progress)

    def manifest() -> Manifest:
        made = layers
        if joined_from:
            sources = [
                SourceFile(part.path.rpartition("/")[2], digest=digest)
                for part, digest in zip(parts, joined_from, strict=True)
            ]
            made = [joined_layer(store, sources, tell)]
        made = [*made, *others]
        config = {**weights_config(store, made), "architecture": "amd64", "os": "linux"}
        config["rootfs"] = {"type": "layers", "diff_ids": [layer.digest for layer in made]}
        if joined_from:
            config[JOINED_FROM] = joined_from
        written = store.blobs.write(json.dumps(config).encode())
        return Manifest.of(Layer(CONFIG_TYPE, written.digest, written.size), tuple(made))

    await fetch(repository, store, [*layers, *others], manifest, report)
    if joined_from:
        await in_thread(store.discard, layers)


def _is_joined(store: ModelStore, name: ModelName, digests: Sequence[str], others: Sequence[Layer]) -> bool:
    """Whether the model that was joined of these parts is in the store."""
    try:
        model = store.find(name)
    except EngineError:
        return False
    paths = [store.blobs.path(layer.digest) for layer in others]
    return model.config.get(JOINED_FROM) == digests and paths == [model.projector_path] * len(paths)
