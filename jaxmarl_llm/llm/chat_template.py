"""Chat templates: Jinja programs of a checkpoint that turn messages into text, run in a sandbox."""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.extra import import_extra


def render_chat(
    template: str, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
) -> str:
    """Turns messages into the text that a chat model continues.

    A template can use what Hugging Face's templates use: `raise_exception`, `strftime_now`, the filter `tojson`,
    `break` and `continue` in loops, and `{% generation %}` blocks, which are read through.

    Args:
      template: source of a Jinja template.
      messages: mappings with the keys "role" and "content".
      add_generation_prompt: end with the start of an answer.
      **variables: of the template, for example `bos_token`, or `enable_thinking` of Qwen3.

    Returns:
      The text.

    Raises:
      ValueError: a message without role or content.
      UserError: the template is damaged, refuses the messages or fails.
    """
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise ValueError(f"message {number} needs a 'role' and a 'content', got {message!r}")
    jinja2 = import_extra("jinja2")
    try:
        compiled = _compiled(template)
        return compiled.render(
            # The keys that a template finds undefined rather than None decide what it writes.
            {"tools": None, "documents": None, **variables},
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
        )
    except jinja2.exceptions.TemplateSyntaxError as error:
        raise UserError(f"the chat template is damaged in line {error.lineno}: {_one_line(error)}") from error
    # The template is a program of somebody else's and may fail in any way.
    except Exception as error:
        raise UserError(f"the chat template refuses these messages: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


@functools.cache
def _environment() -> Any:
    jinja2 = import_extra("jinja2")
    extension = import_extra("jinja2.ext")
    sandbox = import_extra("jinja2.sandbox")

    class GenerationBlock(extension.Extension):
        """`{% generation %}` marks what a model wrote, which only matters to trainers that mask by text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(format_):
        return datetime.datetime.now().strftime(format_)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, extension.loopcontrols]
    )
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    # Jinja's own filter escapes for HTML.
    environment.filters["tojson"] = tojson
    return environment
