"""ChatPreparation: from a conversation to a prompt in segments, and to how its answer will be read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from weakref import WeakKeyDictionary

from ollama_engine.chat.budget import checked_by
from ollama_engine.chat.conversation import render_conversation
from ollama_engine.chat.dialects import Dialect, ToolDefinition, detect, named
from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.chat.lost_tokens import lost_tokens
from ollama_engine.chat.media_marks import MediaMarks, writes_images
from ollama_engine.chat.model_templates import ModelTemplates
from ollama_engine.chat.template import MessageTemplate
from ollama_engine.chat.thinking import thinking_variables
from ollama_engine.chat.tool_schemas import definitions
from ollama_engine.errors import ConfigError, Option
from ollama_engine.runner.chat.conversation import Conversation, read_conversation
from ollama_engine.runner.chat.fitting import RenderedChat, certainly_dropped, fitted
from ollama_engine.runner.chat.forced_call import ForcedCall, Value, as_far_as_writable
from ollama_engine.runner.chat.options import ChatOptions, TemplateKeywords
from ollama_engine.runner.chat.prepared import PreparedChat
from ollama_engine.runner.chat.template_sources import is_steering, template_sources
from ollama_engine.runner.core.input_processor import refuse_encoder, refuse_media
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.sample import SamplingParams
from ollama_engine.sample.constraints.formats import Lark, ValueOrCalls
from ollama_engine.segments import Segment
from ollama_engine.tokenizer import Checkpoint

log = logging.getLogger(__name__)

__all__ = ["ChatPreparation"]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""Roles of the APIs' messages."""
KNOWN_TEMPLATES = 64
TAIL = 400
"""Characters at the end of a prompt that tell whether the answer begins inside the reasoning."""


class ChatPreparation:
    """Templates and dialect of a loaded model. Threads may share it."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._dialects: WeakKeyDictionary[MessageTemplate, Dialect] = WeakKeyDictionary()
        self._known: set[object] = set()
        """Templates that were rendered: they are compiled, and it is known what they take."""
        self._lost: WeakKeyDictionary[MessageTemplate, set[str]] = WeakKeyDictionary()
        self._strange_roles: set[str] = set()

    @cached_property
    def templates(self) -> ModelTemplates:
        """The chat templates of the model's file, or of a family like it."""
        sources, family = template_sources(self._loaded)
        if family is not None:
            log.warning(
                "%s has no chat template; by its vocabulary, messages are written as models of the %s family read "
                "them. Pass template= to choose another one",
                self._loaded.path, family.name,
            )  # fmt: skip
        return ModelTemplates(sources, _special_tokens(self._loaded))

    def segments(
        self, messages: Sequence[object], keywords: TemplateKeywords, *, add_generation_prompt: bool
    ) -> list[Segment]:
        """See `Engine.apply_template`."""
        options = ChatOptions.of(keywords)
        conversation = self._read(messages, options)
        add = add_generation_prompt and not options.continue_final_message
        return self._fitted(conversation, options, add_generation_prompt=add).segments

    def read(self, messages: Sequence[object], options: ChatOptions) -> Conversation:
        """Raises ChatError for messages, tools and documents that cannot be read.

        And UnsupportedInputError for images where the model reads text only, ConfigError for an encoder.
        """
        refuse_encoder(self._loaded)
        conversation = self._read(messages, options)
        if any(message.media for message in conversation.messages):
            refuse_media(self._loaded)
        return conversation

    def _read(self, messages: Sequence[object], options: ChatOptions) -> Conversation:
        """The caller's conversation behind what the Modelfile begins all of them with."""
        given, defaults = read_conversation(messages, options), self._loaded.defaults
        if options.context:
            return given  # it follows another one
        return given.begun(defaults.system, defaults.messages)

    def knows(self, options: ChatOptions) -> bool:
        """Whether a conversation with these options was rendered: the first one takes up to a second longer."""
        return _template_key(options) in self._known

    def prepare(
        self, conversation: Conversation, params: SamplingParams, options: ChatOptions, answer_format: object = None, *,
        checkpoint: Checkpoint = None,
    ) -> PreparedChat:  # fmt: skip
        """Render a conversation. Raises ChatError for what the template refuses, and for options that cannot be read.

        And ConfigError for an `answer_format` that is a grammar, beside tools. An exception of `checkpoint`, which is
        called now and then, ends the work.
        """
        add = not options.continue_final_message
        render = partial(self._fitted, conversation, options, add_generation_prompt=add, checkpoint=checkpoint)
        rendered = checked_by(checkpoint, render)
        if len(self._known) >= KNOWN_TEMPLATES:
            self._known.clear()
        self._known.add(_template_key(options))
        template, tail = rendered.template, rendered.tail
        dialect = self._dialect_of(template, options)
        ends = [end for end in dialect.stops() if not self._ends_by_token(end)]
        tools = definitions(conversation.tools)
        reasoning_open = dialect.reasoning_open(tail)
        thinking = self._thinking(dialect, tail)
        forced = self._forced_call(dialect, template, tools, options, answer_format, reasoning_open=reasoning_open)
        # A forced call ends by its grammar. A stop text might cut it; clients and Modelfiles give some with any call.
        stop = (*(() if options.forces_call else params.stop or ()), *ends)
        return PreparedChat(
            segments=rendered.prompt,
            inputs=rendered.inputs,
            dropped_messages=rendered.dropped_messages,
            params=replace(params, stop=stop),
            show_special=self._shows_special(dialect, ends),
            dialect=dialect,
            tools=tools,
            reasoning_open=reasoning_open,
            thinking=thinking,
            may_reason=thinking is not None and (reasoning_open or is_steering(self._loaded, thinking[0])),
            forced=forced,
        )

    def _forced_call(
        self, dialect: Dialect, template: MessageTemplate, tools: tuple[ToolDefinition, ...], options: ChatOptions,
        answer_format: object, *, reasoning_open: bool,
    ) -> ForcedCall | None:  # fmt: skip
        """The grammar of an answer that has to be a call, or a value where it is none; None where it may be any text.

        Raises ConfigError where the dialect cannot force a call.
        """
        value = None
        if not options.forces_call:
            if answer_format is None or not tools:
                return None
            value = Value.of(answer_format)
            tools = tuple(as_far_as_writable(tool, dialect) for tool in tools)
        name = options.named_tool
        offered = [(number, tool) for number, tool in enumerate(tools) if name in (None, tool.name)]
        if not offered:
            known = ", ".join(tool.name for tool in tools)
            raise ConfigError(
                Option("tool_choice"), f' is "auto", "none", "required" or one of the tools ({known}), got {name!r}'
            )

        def grammar_of(writer: Dialect, *, reasoning_open: bool) -> Lark | ValueOrCalls | None:
            grammar = writer.tool_grammar(
                [tool for _, tool in offered],
                "required" if value is None else "auto",
                options.several_calls,
                control_tokens=self._loaded.tokenizer.steering_tokens,
                reasoning_open=reasoning_open,
                value=None if value is None else value.form,
            )
            if grammar is None:
                return None
            return Lark(grammar) if value is None else ValueOrCalls(grammar, value.read)

        def alone() -> Lark | ValueOrCalls:
            found = grammar_of(replace(dialect, thinking=()), reasoning_open=False)
            assert found is not None
            return found

        grammar = grammar_of(self._as_far_as_it_thinks(dialect, template), reasoning_open=reasoning_open)
        if grammar is not None:
            return ForcedCall(grammar, alone if dialect.answer_grammar is None else None, tuple(offered))
        if value is not None:
            return None  # no call can be told from text, so the format has the whole answer
        raise ConfigError(
            Option("tool_choice"),
            f" is {options.tool_choice!r}, but no tool can be called in the dialect {dialect.name!r}",
        )

    def _fitted(
        self, given: Conversation, options: ChatOptions, *, add_generation_prompt: bool, checkpoint: Checkpoint = None
    ) -> RenderedChat:
        """The prompt, without as many of the oldest messages as options say. No set of messages is rendered twice."""
        turns = given.droppable if options.drop_messages else []

        def rendered(n_turns: int) -> RenderedChat:
            dropped = turns[:n_turns]
            return self._rendered(
                given.without(dropped), options, sum(map(len, dropped)), add_generation_prompt=add_generation_prompt
            )

        if not options.drop_messages:
            return rendered(0)
        return fitted(
            rendered, len(turns), self._loaded, checkpoint, least=certainly_dropped(given, turns, self._loaded)
        )

    def _rendered(
        self, given: Conversation, options: ChatOptions, n_dropped: int, *, add_generation_prompt: bool
    ) -> RenderedChat:
        tools = given.tools
        template = self._template(options.template, with_tools=tools is not None)
        self._warn_of_roles(template, given)
        marks = MediaMarks(self._placeholder(template))
        text = render_conversation(
            template,
            marks.mark(given.messages),
            tools=tools,
            dialect=self._dialect_of(template, options),
            parts_of=marks.parts,
            documents=given.documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=options.continue_final_message,
            variables=thinking_variables(template, options.think) | given.variables,
        )
        self._warn_of_unknown_origin(text, template, (given.messages, tools, given.documents, given.variables))
        segments = marks.segments(text, trust_contents=options.trust_contents)
        return RenderedChat(segments, template, text[-TAIL:], options.context, n_dropped)

    def _template(self, given: str | GoTemplate | None, *, with_tools: bool) -> MessageTemplate:
        """The template that the caller names, else the Modelfile's, else the file's."""
        if given is None and self._stored_template is not None:
            return self._stored_template
        return self.templates.choose(given, with_tools=with_tools)

    @cached_property
    def _stored_template(self) -> GoTemplate | None:
        source = self._loaded.defaults.template
        return None if source is None else GoTemplate(source)

    def _placeholder(self, template: MessageTemplate) -> str | None:
        """The template's text for an image part; None where the template does not know the model's placeholder."""
        images = self._loaded.images
        placeholder = None if images is None else images.multimodal.placeholder
        return placeholder if placeholder and writes_images(template, placeholder) else None

    def _as_far_as_it_thinks(self, dialect: Dialect, template: MessageTemplate) -> Dialect:
        """Without reasoning whose markers are neither in the template nor in the vocabulary.

        A small model that may either call or think, of which it knows nothing, thinks and never ends.
        """

        def known(pair: tuple[str, str]) -> bool:
            return any(marker.strip() in template.source or is_steering(self._loaded, marker) for marker in pair)

        return replace(dialect, thinking=tuple(pair for pair in dialect.thinking if known(pair)))

    def _warn_of_unknown_origin(self, text: str, template: MessageTemplate, given: object) -> None:
        """Log control tokens that no caller's text holds, and that the template wrote in a way that loses its mark."""
        lost = self._lost.setdefault(template, set())
        found = lost_tokens(text, self._loaded.tokenizer.steering_texts(text), given) - lost
        lost |= found
        for token in sorted(found):
            log.warning(
                "the chat template writes %r in a way that cannot be told from what a user types; it is taken as text. "
                "Write it as a literal, or pass trust_contents=True where all contents are your own",
                token,
            )

    def _warn_of_roles(self, template: MessageTemplate, given: Conversation) -> None:
        """Log roles that neither anybody's API has nor the template names: as a rule they are typing mistakes."""
        roles = {message.role for message in given.messages} - ROLES - self._strange_roles
        for role in sorted(role for role in roles if role not in template.source):
            self._strange_roles.add(role)
            log.warning(
                "the role %r is none that the chat template names; usual ones are %s. It is written as the template "
                "writes any role", role, ", ".join(sorted(ROLES)),
            )  # fmt: skip

    def _dialect_of(self, template: MessageTemplate, options: ChatOptions) -> Dialect:
        """The dialect that the caller names, else the detected one. Detection may read the vocabulary: it runs once."""
        if options.dialect:
            return named(options.dialect)
        found = self._dialects.get(template)
        if found is None:
            found = detect(template.source, self._loaded.gguf.metadata)
            self._dialects[template] = found  # a lost race costs one more look
        return found

    def _thinking(self, dialect: Dialect, tail: str) -> tuple[str, str] | None:
        """The dialect's reasoning markers: those that end the prompt, else those in the vocabulary, else the first."""
        pairs = list(dialect.thinking)
        opened = [pair for pair in pairs if tail.rstrip().endswith(pair[0].rstrip())]
        known = [pair for pair in pairs if is_steering(self._loaded, pair[0])]
        return next(iter([*opened, *known, *pairs]), None)

    def _shows_special(self, dialect: Dialect, ends: Sequence[str]) -> bool:
        """Whether control tokens are read in the answer; else they are no part of its text, as anywhere else."""
        markers = [*ends, *(marker for pair in dialect.thinking for marker in pair)]
        return dialect.name not in ("text", "json") or any(is_steering(self._loaded, marker) for marker in markers)

    def _ends_by_token(self, text: str) -> bool:
        tokenizer = self._loaded.tokenizer
        ids = tokenizer.encode(text, add_special=False)
        return len(ids) == 1 and ids[0] in tokenizer.eog_ids


def _template_key(options: ChatOptions) -> object:
    return options.template, bool(options.tools)


def _special_tokens(loaded: Loaded) -> dict[str, str]:
    tokenizer = loaded.tokenizer
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    return {name: tokenizer.token_text(id_) for name, id_ in ids.items() if id_ is not None}
