"""`ollama-engine run`: a chat in a terminal, or an answer to a prompt from the command line or standard input."""

from __future__ import annotations

import argparse
import dataclasses
import os
import stat
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import ollama_engine
from ollama_engine.cli.chat.answer import Answerer
from ollama_engine.cli.chat.chat import ChatConversation
from ollama_engine.cli.chat.chat_printer import ChatPrinter
from ollama_engine.cli.chat.images import image_of_flag
from ollama_engine.cli.chat.interactive import continue_texts
from ollama_engine.cli.chat.line_history import line_history
from ollama_engine.cli.chat.settings import Settings, set_here
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.options import add_model, add_options, build, find_model
from ollama_engine.cli.paths import existing
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.cli.texts import argument, decoded
from ollama_engine.config import EngineConfig
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.sample import SamplingParams
from ollama_engine.store.hub_names import is_hub_name
from ollama_engine.store.parameters import own_parameters

if TYPE_CHECKING:
    from ollama_engine.engine import Engine
    from ollama_engine.store.names import ModelName
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["add_arguments", "main"]

NOT_SAMPLING = ("logprobs", "prompt_logprobs")
"""Sampling options whose results plain text cannot show."""
NOT_REQUEST = ("priority", "cache", "cache_salt")
"""Request options without effect here: there is one user and one answer at a time."""
NOT_SET = (*NOT_SAMPLING, *NOT_REQUEST)
THINK = ("true", "false", "low", "medium", "high")
CHAT_OPTIONS = ("system", "template", "think", "hide-thinking")
FROM_MODELFILE = {field.name for field in dataclasses.fields(SamplingParams)}
"""Options of a Modelfile that are taken when the command line does not say them; num_ctx too."""
NOT_ENGINE = ("parallel", "max_queue")
"""Engine options without effect here: there is one answer at a time, and no queue."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to answer, behind what is piped in; "
                        "without both, prompts one by one from the terminal")  # fmt: skip
    parser.add_argument("--image", metavar="FILE", action="append", default=[],
                        help="show the model an image, with PROMPT or the first message; may be repeated; "
                        "demo is one inside of this package, for demo-vision")  # fmt: skip
    parser.add_argument("--mmproj", dest="projector", metavar="FILE",
                        help="the model's part that reads images, where it is a file of its own")  # fmt: skip
    parser.add_argument("--pull", action="store_true", help="download MODEL where the store has it not; a terminal "
                        "asks otherwise")  # fmt: skip
    parser.add_argument("--insecure", action="store_true", help="speak http to the registry that MODEL is pulled from")
    parser.add_argument("--raw", action="store_true", help="continue the text, also with a model that chats")
    parser.add_argument("--echo", action="store_true", help="with --raw: print the text before its continuation")
    parser.add_argument("--verbose", action="store_true", help="print times, tokens/s and memory on standard error")
    chat = parser.add_argument_group("chat options")
    chat.add_argument("--system", metavar="TEXT", help="the system message; by default as the template has it")
    chat.add_argument("--template", metavar="FILE", help="a chat template (Jinja), or the name of one in the model")
    chat.add_argument("--think", choices=THINK, help="whether the model reasons before it answers, or how much")
    chat.add_argument("--hide-thinking", action="store_true", help="do not show what it reasons; only terminals do")
    add_options(parser, "sampling", SamplingParams, skip=NOT_SAMPLING)
    add_options(parser, "request", RequestOptions, skip=NOT_REQUEST)
    add_options(parser, "engine", EngineConfig, skip=NOT_ENGINE)


def main(args: argparse.Namespace) -> None:
    params = build(SamplingParams, args, skip=NOT_SAMPLING)
    request_options = build(RequestOptions, args, skip=NOT_REQUEST)
    config = build(EngineConfig, args, skip=NOT_ENGINE, parallel=1)
    projector = None if args.projector is None else existing(args.projector)
    path, stored = find_model(args.model, partial(_may_pull, args), insecure=args.insecure)
    if stored is not None:  # what its Modelfile says stands below the command line
        params = build(SamplingParams, args, skip=NOT_SAMPLING, **own_parameters(stored.parameters, FROM_MODELFILE))
        num_ctx = own_parameters(stored.parameters, ("num_ctx",))
        config = build(EngineConfig, args, skip=NOT_ENGINE, parallel=1, **num_ctx)
        if projector is None and stored.projector_path is not None:
            projector = str(stored.projector_path)
    chat_options = _chat_options(args, stored)
    system = None if stored is None else stored.system or None
    if args.system is not None:
        system = argument(args.system, "--system")
    messages = [] if stored is None else [dict(message) for message in stored.messages]
    images = [image_of_flag(name) for name in args.image]
    interactive = args.prompt is None and _is_terminal()
    prompt = "" if interactive else _prompt(args.prompt)
    with _load(path, projector, config, args.verbose) as engine, line_history(used=interactive):
        settings = Settings(
            params, request_options, set_here(args.flags, NOT_SET) if interactive else args.flags, NOT_SET
        )
        reads_images = engine.info.reads_images
        if images and not reads_images:
            raise UsageError("--image has no effect: the model reads text only, unless --mmproj names its other part")
        if _chats(engine, args, template=chat_options["template"] is not None):
            chat = ChatConversation(
                engine, _printer(args), settings, chat_options, system, args.verbose, messages,
                reads_images=reads_images, images=images,
            )  # fmt: skip
            chat.run() if interactive else chat.answer(prompt)
        else:
            echo = args.echo and not interactive
            answerer = Answerer(engine, settings.write, verbose=args.verbose, echo=echo)
            files = [image.data for image in images]
            if interactive:
                continue_texts(answerer, settings, files)
            else:
                answerer.answer(prompt, params, request_options, files)


def _may_pull(args: argparse.Namespace, name: ModelName) -> bool:
    """Whether to download a model that is not in the store: what the command line says, or who sits at the terminal."""
    if args.pull or is_hub_name(name):
        return True
    a_path = args.model.startswith((".", "/", "~")) or args.model.endswith(".gguf")
    if a_path or not (_is_terminal() and sys.stderr.isatty()):
        return False
    print(f"{name.short} is not in the store. Pull it from {name.host}? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _chats(engine: Engine, args: argparse.Namespace, *, template: bool) -> bool:
    """Whether to chat. Raises UsageError for chat options that nothing would read."""
    chats = not args.raw and not args.echo and bool(template or engine.chat_templates)
    unread = [name for name in CHAT_OPTIONS if getattr(args, name.replace("-", "_")) and not chats]
    if unread:
        why = "--raw and --echo continue a text" if args.raw or args.echo else "the model's file has no chat template"
        raise UsageError(f"--{unread[0]} has no effect: {why}")
    return chats


def _chat_options(args: argparse.Namespace, stored: StoredModel | None) -> dict[str, Any]:
    """Options of `Engine.chat`."""
    think = {"true": True, "false": False}.get(args.think, args.think)
    template = args.template
    if template is None and stored is not None and stored.template is not None:
        from ollama_engine.chat.go_template import GoTemplate  # noqa: PLC0415 (25 ms, for models of the store only)

        return {"think": think, "template": GoTemplate(stored.template)}
    if template is not None and os.path.isfile(template):
        with open(template, "rb") as file:
            template = decoded(file.read(), template)
    return {"think": think, "template": template}


def _printer(args: argparse.Namespace) -> ChatPrinter:
    terminal = sys.stdout.isatty()
    dim = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return ChatPrinter(reasoning=terminal and not args.hide_thinking, dim=dim)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _prompt(given: str | None) -> str:
    """The prompt: what is piped in without its last line break, an empty line, and PROMPT; or one of them alone."""
    if given is not None:
        piped = _read_input().strip("\n") if _is_piped() else ""
        return f"{piped}\n\n{argument(given, 'PROMPT')}" if piped else argument(given, "PROMPT")
    if sys.stdin is None:
        raise UsageError("there is no PROMPT, and standard input is closed")
    text = _read_input().removesuffix("\n")
    if not text:
        raise UsageError("there is no PROMPT, and standard input is empty")
    return text


def _read_input() -> str:
    return decoded(sys.stdin.buffer.read(), "standard input")


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file. Other kinds, such as a socket of a service, may never end."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced by what has no descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _load(path: str, projector: str | None, config: EngineConfig, verbose: bool) -> Engine:
    started = time.perf_counter()
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    with StatusLine(sys.stderr) as line:
        engine = ollama_engine.Engine(path, **options, projector=projector, progress=LoadingBar(line, "loading"))
    if verbose:
        seconds = time.perf_counter() - started
        info = engine.info
        attention = "on" if info.flash_attention else "off"
        drafts = f"draft model: {config.draft_model}\n" if config.draft_model else ""
        print(
            f"loaded in {seconds:.2f} s: {info.architecture}, num_ctx {info.num_ctx}, {info.threads} threads, "
            f"flash attention {attention}, cache {config.kv_cache_type}\nsystem: {info.system}\n"
            f"kernels: {'; '.join(info.kernels) or 'by the built-in table'}\n{drafts}\n{engine.memory}\n",
            file=sys.stderr,
        )
    return engine
