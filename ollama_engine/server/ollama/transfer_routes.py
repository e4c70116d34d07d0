"""Routes: models that come and go, with progress: pull, push, create, and the blobs that `create` is given."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ollama_engine.errors import ConfigError, EngineBusyError, ModelFormatError, ModelNotFoundError
from ollama_engine.server.errors import ApiError, ClientGoneError
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.library import Library
from ollama_engine.server.ollama.models_routes import Served, Store, model_name
from ollama_engine.server.ollama.models_schemas import CreateRequest, TransferRequest
from ollama_engine.server.ollama.ndjson import Line, respond
from ollama_engine.server.settings import ServerSettings
from ollama_engine.store.create import Recipe, create_model
from ollama_engine.store.hub_names import is_hub_name
from ollama_engine.store.hugging_face import Repository, pull_from_hub
from ollama_engine.store.manifest import hex_of
from ollama_engine.store.model_store import ModelStore
from ollama_engine.store.names import ModelName
from ollama_engine.store.parameters import check_parameters
from ollama_engine.store.pull import pull, push
from ollama_engine.store.registry import Registry
from ollama_engine.store.sources import SourceFile
from ollama_engine.store.transfers import Report, TransferSettings, in_thread

__all__ = ["router"]

router = APIRouter(route_class=JsonRoute)

Work = Callable[[Report], Coroutine[Any, Any, None]]


@router.post("/api/pull")
async def pull_model(request: Request, body: TransferRequest, service: Served, store: Store) -> Response:
    """Download a model into the store. Callers who ask for the same model share one download."""
    name = registry_name(body)
    return await progress_response(
        request, service.library, ("pull", *name.key), pulling(service.settings, store, name, body), stream=body.stream
    )


@router.post("/api/push")
async def push_model(request: Request, body: TransferRequest, service: Served, store: Store) -> Response:
    """Publish a model of the store."""
    name = registry_name(body)
    if is_hub_name(name):
        raise ApiError(400, f"{name.host} takes no models by this API; its own tools upload files")
    await asyncio.to_thread(store.entry, name)  # so that the status can say that there is none

    async def work(report: Report) -> None:
        async with registry_of(service.settings, name, body) as registry:
            await push(registry, store, report)

    return await progress_response(request, service.library, ("push", *name.key), work, stream=body.stream)


def registry_name(body: TransferRequest) -> ModelName:
    """The name of a model in a registry. Raises ApiError."""
    name = model_name(body.chosen_name)
    if body.chosen_name.strip().lower().startswith("http://") and not body.insecure:
        raise ApiError(400, "insecure protocol http: set insecure to use it")
    return name


def registry_of(settings: ServerSettings, name: ModelName, body: TransferRequest | None) -> Registry:
    transfers = TransferSettings(streams=settings.max_transfer_streams)
    if body is None:
        return Registry(name, transfers)
    credentials = (body.username, body.password) if body.username else None
    return Registry(name, transfers, insecure=body.insecure, credentials=credentials)


def pulling(settings: ServerSettings, store: ModelStore, name: ModelName, body: TransferRequest | None) -> Work:
    """The work of pulling a model, from the Hub or from a registry."""

    async def work(report: Report) -> None:
        if is_hub_name(name):
            # In a thread: importing the Hub's package takes a while.
            repository = await in_thread(Repository, name, TransferSettings(streams=settings.max_transfer_streams))
            async with repository:
                await pull_from_hub(repository, store, report)
        else:
            async with registry_of(settings, name, body) as registry:
                await pull(registry, store, report)

    return work


# -- create ------------------------------------------------------------------------------------------------------------


@router.post("/api/create")
async def create(request: Request, body: CreateRequest, service: Served, store: Store) -> Response:
    """Make a model: from another one, or from uploaded files."""
    name = model_name(body.chosen_name)
    if not body.from_ and not body.files:
        raise ApiError(400, "neither 'from' or 'files' was specified")
    recipe = recipe_of(body)

    async def work(report: Report) -> None:
        whole = await with_base(service.library, service.settings, store, body.from_, recipe, report)
        try:
            await create_model(store, name, whole, report)
        except ModelFormatError as error:
            if not recipe.files and not recipe.adapters:
                raise
            raise ApiError(400, str(error)) from error  # the client has sent what is no model

    key = object()  # two requests for the same name may be of different recipes
    return await progress_response(request, service.library, key, work, stream=body.stream)


def recipe_of(body: CreateRequest) -> Recipe:
    """The recipe in a request, but for the model that it is from. Raises ApiError."""
    check_characters(body)
    licenses = [body.license] if isinstance(body.license, str) else body.license or []
    config = {"renderer": body.renderer, "parser": body.parser, "requires": body.requires}
    return Recipe(
        files=[uploaded(name, digest) for name, digest in (body.files or {}).items()],
        adapters=[uploaded(name, digest) for name, digest in (body.adapters or {}).items()],
        quantize=body.quantize or body.quantization,
        template=body.template or None,
        system=body.system or None,
        parameters=check_parameters(body.parameters or {}),
        messages=body.messages,
        licenses=[text for text in licenses if text],
        config={key: value for key, value in config.items() if value},
    )


def check_characters(body: CreateRequest) -> None:
    """Raises ApiError for a field with half of a surrogate pair: JSON can hold it, and no blob in UTF-8."""
    for name, value in body.model_dump(by_alias=True).items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            told = f"{name}: a text has half of a surrogate pair (\\ud800 to \\udfff), which is no character"
            raise ApiError(400, told) from None


def uploaded(name: str, digest: str) -> SourceFile:
    checked_digest(digest)
    return SourceFile(name, digest=digest)


async def with_base(
    library: Library, settings: ServerSettings, store: ModelStore, text: str, recipe: Recipe, report: Report
) -> Recipe:
    """The recipe with the model that it is from, which is pulled where it is not there."""
    if not text:
        return recipe
    name = model_name(text)
    try:
        await asyncio.to_thread(store.entry, name)
    except ModelNotFoundError:
        try:
            path = library.find(text).model_path
        except ModelNotFoundError:
            await pulling(settings, store, name, None)(report)
        else:
            return replace(recipe, files=[SourceFile(path.name, path), *recipe.files])
    return replace(recipe, base=name)


# -- blobs -------------------------------------------------------------------------------------------------------------


@router.head("/api/blobs/{digest}")
async def has_blob(digest: str, store: Store) -> Response:
    """Whether a blob is in the store. It stays for an hour at least, for `create`."""
    there = await asyncio.to_thread(store.blobs.claim, checked_digest(digest))
    return Response(status_code=404 if there is None else 200)


@router.post("/api/blobs/{digest}")
async def upload_blob(digest: str, request: Request, service: Served, store: Store) -> Response:
    """Store the request's body, whose digest must be this one."""
    if await asyncio.to_thread(store.blobs.claim, checked_digest(digest)) is not None:
        return Response(status_code=200)
    with busy_as_said():
        service.library.places.take()
    try:
        await stored_body(request, store, digest)
    finally:
        service.library.places.give_back()
    return Response(status_code=201)


async def stored_body(request: Request, store: ModelStore, digest: str) -> None:
    """Write the request's body into the store. Raises ApiError, and ClientGoneError."""
    with await in_thread(store.blobs.writer) as writer:
        try:
            async for data in request.stream():
                await in_thread(writer.write, data)
        except ClientDisconnect:
            raise ClientGoneError from None
        except OSError as error:
            raise disk_error(error) from error
        try:
            await in_thread(writer.commit, digest)
        except ModelFormatError as error:
            raise ApiError(400, str(error)) from None


@contextmanager
def busy_as_said() -> Iterator[None]:
    """Have a client read which limit is reached: by itself, EngineBusyError says Ollama's words for a full queue."""
    try:
        yield
    except EngineBusyError as error:
        raise ApiError(503, str(error)) from None


def disk_error(error: OSError) -> Exception:
    """The error for a client: that the disk is full. Others stay as they are, in the log."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ApiError(507, f"{error.filename or 'the store'}: {error.strerror}") if full else error


def checked_digest(digest: str) -> str:
    """The digest. Raises ApiError for what is none."""
    try:
        return f"sha256:{hex_of(digest)}"
    except ModelFormatError as error:
        raise ApiError(400, f"invalid digest: {error}") from None


# -- progress ----------------------------------------------------------------------------------------------------------


async def progress_response(
    request: Request, library: Library, key: Hashable, work: Work, *, stream: bool | None
) -> Response:
    """The response with the progress of work that callers with the same key share; without `stream`, its last line."""

    async def lines() -> AsyncGenerator[Line, None]:
        async with aclosing(library.transfers.follow(key, work)) as followed:
            try:
                with busy_as_said():
                    async for progress in followed:
                        yield progress.as_json()
            except ConfigError as error:
                raise ApiError(400, str(error)) from error
            except OSError as error:
                raise disk_error(error) from error

    return await respond(request, lines(), lambda told: told[-1], stream=stream is not False)
