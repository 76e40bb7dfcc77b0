"""Chats: templates, which tokens are learned, and errors with file and line."""

import functools
import json

from absl.testing import parameterized
import numpy as np
import pytest

from bamboo_jax import base
from bamboo_jax.data import chat, vocabularies
from tests.data import files_test, vocabularies_test

tokenizers = pytest.importorskip("tokenizers")

_SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
_HEAD = "<|im_start|>"
# ChatML; `{}` is what is put around an answer.
_CHATML = """{{%- for message in messages %}}
{{{{- bos_token + '<|im_start|>' if loop.first else '<|im_start|>' }}}}
{{{{- message.role + '\\n' }}}}
{{%- if message.role == 'assistant' %}}
{0}{{{{- message.content + '<|im_end|>' }}}}{1}
{{%- else %}}
{{{{- message.content + '<|im_end|>' }}}}
{{%- endif %}}
{{{{- '\\n' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}
{{{{- '<|im_start|>assistant\\n' }}}}
{{%- endif %}}"""
PLAIN = _CHATML.format("", "")
MARKED = _CHATML.format("{%- generation %}", "{%- endgeneration %}")
# Thoughts stay in the last message only, as in Qwen 3.
FORGETS = """{% for m in messages %}{{ m.role + ':' + ('<think>' if loop.last else '')
+ m.content }}{% endfor %}"""


def say(*texts):
  """Returns messages of a user and an assistant in turn."""
  roles = ("user", "assistant")
  return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def write_tokenizer(folder, template=PLAIN):
  """Writes a tokenizer of bytes with special tokens, and a chat template."""
  tokenizer = vocabularies_test.train_tokenizer(["the cat and the dog"] * 9, _SPECIAL)
  folder.mkdir()
  tokenizer.save(str(folder / "tokenizer.json"))
  settings = {"eos_token": "<|end|>", "bos_token": {"__type": "AddedToken", "content": "<|end|>"}}
  if isinstance(template, list):
    settings["chat_template"] = template
  elif template is not None:
    (folder / "chat_template.jinja").write_text(template)
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  return vocabularies.read_vocabulary(folder).tokenizer


class ChatTest(files_test.FilesCase):

  def encode(self, messages, template=PLAIN):
    """Returns the text of a chat, and the parts of it that are learned."""
    folder = self.folder / "hub"
    vocabulary = write_tokenizer(folder, template)
    tokens, is_learned = chat.encode({"messages": messages}, chat.read_template(folder), vocabulary)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    decode = lambda part: tokenizer.decode(part, skip_special_tokens=False)
    cuts = np.flatnonzero(np.diff(is_learned)) + 1
    parts = np.split(np.array(tokens), cuts)[0 if is_learned[0] else 1 :: 2]
    return decode(tokens), [decode(part.tolist()) for part in parts]

  @parameterized.named_parameters(
      ("one", say("hi", "the dog"), PLAIN, ["the dog<|im_end|>\n"]),
      ("two", say("hi", " a", "so", "bé"), PLAIN, [" a<|im_end|>\n", "bé<|im_end|>\n"]),
      ("marked", say("hi", "a", "so", "b"), MARKED, ["a<|im_end|>", "b<|im_end|>"]),
      ("named", say("hi", "a"), [{"name": "default", "template": PLAIN}], ["a<|im_end|>\n"]),
      ("no_answer", say("hi"), PLAIN, []),
      ("same_words", say("the cat", "the cat"), PLAIN, ["the cat<|im_end|>\n"]),
  )
  def test_answers_are_learned(self, messages, template, answers):
    text, learned = self.encode(messages, template)
    self.assertStartsWith(text, "<|end|><|im_start|>user\n")
    self.assertEqual(learned, answers)
    for message in messages:
      self.assertIn(f"{message['role']}\n{message['content']}<|im_end|>\n", text)

  @parameterized.named_parameters(
      ("plain", PLAIN, False), ("marked", MARKED, False), ("tools", "{{ tools|tojson }}", True)
  )
  def test_tokens_are_those_of_transformers(self, template, has_tools):
    transformers = pytest.importorskip("transformers")
    vocabulary = write_tokenizer(self.folder / "hub", template)
    messages = [{"role": "system", "content": "é"}, *say("hi <b>", " the dog", "so", "b")]
    record = {"messages": messages} | ({"tools": [{"name": "<é>"}]} if has_tools else {})
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(self.folder / "hub")
    options = dict(return_dict=True, return_assistant_tokens_mask=template == MARKED)
    wanted = peer.apply_chat_template(messages, tools=record.get("tools"), **options)
    tokens, is_learned = chat.encode(record, chat.read_template(self.folder / "hub"), vocabulary)
    self.assertEqual(tokens, wanted["input_ids"])
    if template == MARKED:
      self.assertEqual(is_learned.astype(int).tolist(), wanted["assistant_masks"])

  @parameterized.parameters("stream", "whole")
  def test_files(self, packing):
    vocabulary = write_tokenizer(self.folder / "hub")
    records = [{"messages": say("hi", "the dog", "and", "a cat")}, {"messages": say("so", "b")}]
    self.write_rows("a.jsonl", *records)
    template = chat.read_template(self.folder / "hub")
    chats = [chat.encode(record, template, vocabulary) for record in records]
    length = sum(len(tokens) for tokens, _ in chats)
    make = functools.partial(
        self.make, "a.jsonl", field="messages", tokenizer=str(self.folder / "hub")
    )
    # A stream needs one token more than a sample has.
    is_whole = packing == "whole"
    source = make(length=length - 1 + is_whole, documents=is_whole, packing=packing)
    sample = source.batch([0], seed=0)
    targets = [t if learned else -1 for c in chats for t, learned in zip(*c, strict=True)]
    self.assertEqual(sample["targets"][0].tolist(), targets[1:] + [-1] * is_whole)
    self.assertIn("template", source.fingerprint)
    everything = make(length=length - 1, loss="all")
    self.assertNotIn(-1, everything.batch([0], seed=0)["targets"])

  @parameterized.named_parameters(
      ("empty", [], r"line 2: messages must be a list of messages, got '\[\]'"),
      ("role", [{"role": "usr", "content": ""}], "line 2: message 0: .*'usr'; did you mean 'user'"),
      ("content", [*say("a"), {"role": "assistant", "content": None}], "line 2: message 1 must"),
      ("surrogate", say("\udc80", "a"), "line 2: .*surrogates"),
      ("raises", say("a", "b"), "line 2: The chat .*hub: stop", "{{ raise_exception('stop') }}"),
      ("forgets", say("a", "b", "c", "d"), "line 2: .*changes .* message 1.*generation", FORGETS),
      ("undefined", say("a", "b"), "line 2: The chat template .*'now' is undefined", "{{ now() }}"),
      ("damaged", say("a", "b"), "line 2: The chat template .* is damaged: ", "{% for %}"),
      ("no_template", say("a", "b"), "^There is no chat template in .*hub: neither chat_t", None),
  )
  def test_bad_input(self, messages, message, template=PLAIN):
    write_tokenizer(self.folder / "hub", template)
    self.write("a.jsonl", "\n" + json.dumps({"messages": messages}) + "\n")
    with self.assertRaisesRegex(base.DataError, message) as caught:
      self.make("a.jsonl", field="messages", tokenizer=str(self.folder / "hub"))
    self.assertNotIn("\n", str(caught.exception))

  def test_what_is_missing_is_said(self):
    self.write_rows("a.jsonl", {"messages": say("a", "b")})
    self.refuses(
        "line 1: Unknown field 'text'.* Allowed: messages. For chats, field=messages.", "a.jsonl"
    )
    self.write("a.txt", "hi")
    given = dict(field="messages", tokenizer=str(self.folder / "hub"))
    write_tokenizer(self.folder / "hub")
    self.refuses("a.txt is a text, without the fields .'messages'", "a.txt", **given)
    self.write("b.jsonl", '"hi"')
    self.refuses("b.jsonl, line 1 must be an object", "b.jsonl", **given)
    self.refuses("field=messages needs the option tokenizer: .*None", "a.jsonl", field="messages")
