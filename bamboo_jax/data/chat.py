"""Chats: messages, rendered by the template of a tokenizer; answers are learned.

A chat template (Jinja) makes one text of all messages, as in inference. An answer
is what a message of the assistant adds to the text of the messages before it, with
the beginning of an answer. Where a template changes earlier messages, it has to
say itself what answers are, by `{% generation %}`.

Templates come with weights of others: they run in Jinja's sandbox. The same record
gives the same tokens on every machine and day, so there is no `strftime_now`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.base import extras
from bamboo_jax.data import vocabularies

FIELD = "messages"  # Of a record.
ROLES = ("assistant", "developer", "system", "tool", "user")
_FILE = "chat_template.jinja"
_SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # Around answers; no characters of any text.


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  """The template beside a tokenizer.

  Attributes:
    path: Its folder, for messages.
    tokens: Special tokens by the names that templates have for them.
  """

  path: str
  text: str
  tokens: Mapping[str, str]

  @property
  def sha256(self) -> str:
    """Identifies what it makes of messages."""
    content = json.dumps([self.text, self.tokens], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()

  def render(self, messages: Sequence[Any], tools: Any = None, *, prompts: bool = False) -> str:
    """Returns the text of messages, and the beginning of an answer if it `prompts`.

    Raises `base.DataError` for messages that the template does not take.
    """
    jinja2, template = _compile(self.text, self.path)
    try:
      text: str = template.render(
          messages=messages, tools=tools, add_generation_prompt=prompts, **self.tokens
      )
    except (jinja2.TemplateError, LookupError, TypeError, ValueError) as error:
      raise base.DataError(f"The chat template of {self.path}: {error}.") from error
    return text


def read_template(tokenizer: str | pathlib.Path) -> ChatTemplate:
  """Returns the template of a tokenizer's file or folder; raises `base.DataError`."""
  folder = vocabularies.find_file(tokenizer).parent
  first, second = (vocabularies.read_settings(folder / name) for name in _SETTINGS)
  settings, file = first | second, folder / _FILE
  try:
    text = file.read_text() if file.is_file() else settings.get("chat_template")
  except (OSError, ValueError) as error:
    raise base.DataError(f"Cannot read {file}: {error}.") from error
  if isinstance(text, list):  # Several, by name.
    text = {each["name"]: each["template"] for each in text}.get("default")
  if not isinstance(text, str):
    raise base.DataError(
        f"There is no chat template in {folder}: neither {_FILE} nor chat_template in "
        f"{_SETTINGS[1]}. Take the folder of a model that was trained for chats, or add {_FILE}."
    )
  tokens = {
      name: value["content"] if isinstance(value, dict) else value
      for name, value in settings.items()
      if name.endswith("_token") and value
  }
  return ChatTemplate(str(folder), text, tokens)


def encode(
    record: Mapping[str, Any], template: ChatTemplate, tokenizer: Any
) -> tuple[list[int], np.ndarray]:
  """Returns the tokens of a record, and whether each is learned, bool [tokens].

  Args:
    record: Has `FIELD`, and maybe "tools".
    tokenizer: That of `tokenizers`.

  Raises:
    base.DataError: Messages are wrong, or the template does not take them.
  """
  messages, tools = record[FIELD], record.get("tools")
  if not isinstance(messages, list) or not messages:
    raise base.DataError(f"{FIELD} must be a list of messages, got {str(messages)[:50]!r}.")
  for number, message in enumerate(messages):
    where = f"message {number}"
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
      raise base.DataError(
          f"{where} must have a role and a text as content, got {str(message)[:50]!r}."
      )
    if message.get("role") not in ROLES:
      raise base.DataError(f"{where}: {base.suggest(str(message.get('role')), ROLES, what='role')}")
  text, *marked = template.render(messages, tools).split(_OPEN)
  answers = []  # Where they begin and end in the text of all messages.
  for part in marked:
    answer, _, after = part.partition(_CLOSE)
    answers.append((len(text), len(text) + len(answer)))
    text += answer + after
  for number, message in enumerate(() if answers else messages):
    if message["role"] != "assistant":
      continue
    before = template.render(messages[:number], tools, prompts=True)
    so_far = template.render(messages[: number + 1], tools)
    if not (text.startswith(so_far) and so_far.startswith(before)):
      raise base.DataError(
          f"The chat template of {template.path} changes the text of message {number}, or of one "
          f"before, by later ones. Put {{% generation %}} and {{% endgeneration %}} around "
          f"answers in {_FILE} there."
      )
    answers.append((len(before), len(so_far)))
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise base.DataError(f"{error}.") from error
  found = tokenizer.encode(text, add_special_tokens=False)
  place_T = np.array([start for start, _ in found.offsets], np.int64)
  is_learned = np.zeros(len(place_T), bool)
  for start, stop in answers:
    is_learned |= (start <= place_T) & (place_T < stop)
  return found.ids, is_learned


@functools.lru_cache(maxsize=1)
def _compile(text: str, path: str) -> tuple[Any, Any]:
  """Returns the library and a template, with what `transformers` offers templates."""
  jinja2, sandbox, ext = (
      extras.load(name, extra="bpe", what=f"The chat template of {path}")
      for name in ("jinja2", "jinja2.sandbox", "jinja2.ext")
  )

  class Generation(ext.Extension):  # type: ignore[name-defined,misc]
    """Puts marks around `{% generation %}` ... `{% endgeneration %}`."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[Any]:
      next(parser.stream)
      body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
      mark = lambda text: jinja2.nodes.Output([jinja2.nodes.TemplateData(text)])
      return [mark(_OPEN), *body, mark(_CLOSE)]

  def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)

  def to_json(value: Any, **options: Any) -> str:  # That of Jinja escapes HTML.
    return json.dumps(value, **{"ensure_ascii": False, **options})

  made = sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
  )
  made.filters["tojson"] = to_json
  made.globals["raise_exception"] = raise_exception
  try:
    return jinja2, made.from_string(text)
  except jinja2.TemplateError as error:
    raise base.DataError(f"The chat template of {path} is damaged: {error}.") from error
