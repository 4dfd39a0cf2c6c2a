"""`jaxmarl-llm chat`."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxmarl_llm.cli.options import parse_options
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.user_files import user_path

_EXIT = ("/exit", "/quit")


@dataclasses.dataclass(frozen=True)
class ChatOptions:
    """Talk to a role of a fine-tuned run, or to a model.

    Type a message and press return; /exit or Ctrl-D ends. Lines can also be piped in, one message each.
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|MODEL")]
    """Folder of a run that `jaxmarl-llm finetune` wrote; or a model: smollm2, a Hugging Face folder or name, a .gguf
    file."""
    role: Annotated[str | None, tyro.conf.arg(metavar="ROLE")] = None
    """Of a run: who answers; without it, the first role. What you type is put into its prompt as the problem."""
    plain: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Of a run: send what you type as it is, without the role's prompt."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="NAME")] = "best"
    """Of a run, which adapters: best (by held-out accuracy), last, or an iteration's number."""
    message: str | None = None
    """Print the answer to one message and leave."""
    system: str = ""
    """A system message."""
    max_new_tokens: int = 256
    """The longest answer, in tokens."""
    temperature: float = 0.0
    """How much chance there is in an answer: 0 takes the likeliest token, 1 draws as the model says."""
    top_p: float = 1.0
    """Draw among the likeliest tokens that together have this probability."""
    seed: int = 0
    """Of what is drawn."""
    dtype: Annotated[str | None, tyro.conf.arg(metavar="DTYPE")] = None
    """Of a model: float32 or bfloat16; without it, float32. A run has its own."""
    max_length: int = 2048
    """The longest conversation, in tokens; what is older is left out."""
    adapter: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Of a model: an adapter in PEFT's format that is added to it, such as one that `export` wrote."""


def chat_command(arguments: Sequence[str]) -> int:
    """Runs a chat; returns the exit status."""
    options = parse_options(ChatOptions, arguments, program="jaxmarl-llm chat")
    _check(options)
    from jaxmarl_llm.training.compilation_cache import use_compilation_cache

    use_compilation_cache()
    chat = _open(options)
    if options.message is not None:
        _print(chat.answer(options.message))
        return 0
    return _talk(chat)


def _check(options: ChatOptions) -> None:
    if options.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens must be at least 1, got {options.max_new_tokens}")
    if not 0 <= options.temperature < float("inf"):
        raise UserError(f"--temperature must be at least 0, got {options.temperature}")
    if not 0 < options.top_p <= 1:
        raise UserError(f"--top-p must be above 0 and at most 1, got {options.top_p}")
    if not 0 <= options.seed < 2**32:
        raise UserError(f"--seed must lie between 0 and {2**32 - 1}, got {options.seed}")
    if options.max_length <= options.max_new_tokens:
        raise UserError(f"--max-length must be above --max-new-tokens, {options.max_new_tokens}")
    if options.message is not None and not options.message.strip():
        raise UserError("--message is empty: write what you want to say")


class Chat:
    """A conversation.

    Args:
      model: with a tokenizer.
      options: of the command.
      render: from what the user types to the messages of the role's prompt; None sends it as it is.
      name: of who answers.

    Raises:
      UserError: an answer of full length would leave no room for a message.
    """

    def __init__(self, model: Any, options: ChatOptions, render: Any, name: str):
        if model.config.max_length <= options.max_new_tokens:
            raise UserError(
                f"--max-new-tokens {options.max_new_tokens} leaves no room for a message: {model.source} holds "
                f"{model.config.max_length} tokens"
            )
        self.name, self._model, self._options, self._render = name, model, options, render
        self._history: list[dict[str, str]] = []
        self._turns = 0

    def answer(self, text: str) -> Iterator[str]:
        """The answer to a message, piece by piece; both are remembered once it is complete.

        Raises:
          UserError: a message that is too long.
        """
        import jax

        from jaxmarl_llm.llm import stream_tokens

        options, tokenizer = self._options, self._model.tokenizer
        system, asked = self._asked(text)
        room = self._model.config.max_length - options.max_new_tokens
        while len(prompt := tokenizer.chat_ids([*system, *self._history, asked])) > room:
            if not self._history:
                raise UserError(
                    f"the message is too long: {len(prompt)} tokens, with {options.max_new_tokens} to write, where "
                    f"{self._model.config.max_length} fit (--max-length)"
                )
            del self._history[:2]
        key = jax.random.fold_in(jax.random.key(options.seed), self._turns)
        self._turns += 1
        module, params = self._model.for_one_row
        tokens = stream_tokens(
            module,
            params,
            prompt,
            key,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            stop_tokens=tokenizer.stop_tokens,
        )
        pieces = []
        for piece in tokenizer.decode_stream(tokens):
            pieces.append(piece)
            yield piece
        self._history += [asked, {"role": "assistant", "content": "".join(pieces)}]

    def _asked(self, text: str) -> tuple[list[dict[str, str]], dict[str, str]]:
        """System messages, and what the user says."""
        messages = self._render(text) if self._render else [{"role": "user", "content": text}]
        system = [message for message in messages if message["role"] == "system"]
        if self._options.system:
            system = [{"role": "system", "content": self._options.system}]
        return system, messages[-1]


def _open(options: ChatOptions) -> Chat:
    from jaxmarl_llm.cli.run_folder import finetuned_config, is_finetuned
    from jaxmarl_llm.llm.adapters import merge_adapter
    from jaxmarl_llm.llm.checkpoints import load_adapter, load_model

    folder = user_path(options.source, "RUN|MODEL")
    if is_finetuned(folder) or (folder / "ablation.json").is_file():
        for name in ("dtype", "adapter"):
            if getattr(options, name) is not None:
                raise UserError(
                    f"--{name} is for models, {options.source} is a fine-tuned run with its own: leave it out"
                )
        return _open_run(options, finetuned_config(folder))
    if folder.is_dir() and not (folder / "config.json").is_file() and not list(folder.glob("*.gguf")):
        if (folder / "adapter_config.json").is_file():
            raise UserError(f"{folder} is an adapter: name its model, and the adapter with --adapter {options.source}")
        # Says what else the folder holds.
        finetuned_config(folder)
    if options.role is not None or options.plain:
        raise UserError(f"--role and --plain are for fine-tuned runs, {options.source} is a model: leave them out")
    model = _holding(load_model(options.source, dtype=options.dtype or "float32"), options.max_length)
    if model.tokenizer is None or model.tokenizer.chat_template is None:
        raise UserError(f"{options.source} has no {'chat template' if model.tokenizer else 'tokenizer'} to talk by")
    if options.adapter is not None:
        config, adapters = load_adapter(user_path(options.adapter, "--adapter"), model)
        model = model.with_params(merge_adapter(config, model.params, adapters, 0))
    return Chat(model, options, None, Path(options.adapter or options.source).name)


def _holding(model: Any, max_length: int) -> Any:
    """A model that holds so many tokens, or as many as it was trained on: those of a run hold no more than its own."""
    longest = model.trained_length or model.config.max_length
    config = dataclasses.replace(model.config, max_length=min(max_length, longest))
    return dataclasses.replace(model, config=config)


def _open_run(options: ChatOptions, config: Any) -> Chat:
    from jaxmarl_llm.cli.run_folder import note_of_base
    from jaxmarl_llm.errors import unknown_name
    from jaxmarl_llm.workflows import make_workflow
    from jaxmarl_llm.workflows.finetuning.finished import load_finetuned_team
    from jaxmarl_llm.workflows.text import make_text_task
    from jaxmarl_llm.workflows.text.formats import constants, formats_of

    workflow = make_workflow(config.workflow, **config.workflow_args)
    role = options.role or workflow.roles[0]
    if role not in workflow.roles:
        raise unknown_name("role", role, workflow.roles)
    team = load_finetuned_team(user_path(options.source), config, options.checkpoint)
    if note := note_of_base(config, options.checkpoint, team.iteration):
        print(note, file=sys.stderr)
    model = _holding(team.merged(team.policy_of(role)), options.max_length)
    if options.plain:
        return Chat(model, options, None, role)
    call = next(call for call in workflow.calls if call.role == role)
    of_call = formats_of(workflow, config.formats or None)[call.name]
    # What other roles would have written is not there.
    task = make_text_task(config.task, **config.task_args)
    values = dict.fromkeys(of_call.placeholders, "") | constants(workflow, task, call, 1)

    def render(text: str) -> list[dict[str, str]]:
        return of_call.messages(values | {"problem": text})

    return Chat(model, options, render, role)


def _print(pieces: Iterator[str]) -> None:
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)


def _talk(chat: Chat) -> int:
    """Reads messages until there are no more."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(f"{chat.name} answers; /exit or Ctrl-D ends.")
    while True:
        try:
            line = input("> ") if is_terminal else sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        text = line.strip()
        if text in _EXIT or (not line and not is_terminal):
            return 0
        if not text:
            continue
        try:
            _print(chat.answer(text))
        except KeyboardInterrupt:
            # What was being written is dropped, the conversation goes on.
            print()
            if not is_terminal:
                raise
        except UserError as error:
            if not is_terminal:
                raise
            print(f"error: {error}", file=sys.stderr)
