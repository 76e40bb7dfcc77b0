"""Vocabularies: the bytes of a text, or a trained tokenizer from a file.

A tokenizer.json of `tokenizers` or `transformers` needs the extra `bpe`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import extras
from bamboo_jax.data import corpus

# In a folder, the first that exists. Those of SentencePiece are refused: neither library reads
# them as they are, or makes the same tokens of a text.
FILES = ("tokenizer.json", "tokenizer.model", "spiece.model")
# What ends a document, the first that there is and is a special token; else the
# `eos_token` in these files, or in config.json; else any of the former.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]")
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
_PIECE_CHARS = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
  """A vocabulary of tokens from 0 to `vocab_size - 1`.

  Attributes:
    end: Token that ends a document.
    encode_texts: Returns the tokens of each text, without the end token.
    fingerprint: Everything that the tokens depend on, as plain values.
    in_pieces: Whether lines of a text may be encoded one by one.
    special: Padding, [CLS], [SEP] and [MASK], if there are any.
    tokenizer: That of `tokenizers`, from a tokenizer.json.
  """

  vocab_size: int
  end: int
  encode_texts: Callable[[Sequence[str]], list[Any]]
  fingerprint: Mapping[str, str | int]
  in_pieces: bool = True
  special: tuple[int, ...] | None = None
  tokenizer: Any = None


# Each byte is a token; 0, which does not occur in text, ends a document.
BYTES = Vocabulary(
    256,
    0,
    lambda texts: [np.frombuffer(text.encode(), np.uint8) for text in texts],
    {"tokens": "bytes", "vocab_size": 256},
)


def read_vocabulary(
    path: base.StrPath | None, vocab_size: int | None = None, end_token: int | None = None
) -> Vocabulary:
  """Returns the vocabulary of a file, or of a folder with one; None: bytes.

  `end_token` is that which ends a document; None: the one that the file, or
  another in its folder, tells.

  Raises:
    ValueError: There is no such `end_token`.
    base.DataError: There is no vocabulary, it is damaged, or it has more than
      `vocab_size` tokens.
  """
  found = BYTES
  if path is not None:
    path = find_file(path)
    found = _read_tokenizer(path, end_token)
  elif end_token not in (None, found.end):
    raise ValueError(f"end_token must be None or {found.end} for bytes, got {end_token}.")
  check_size(found, path, vocab_size)
  return found


def check_size(vocabulary: Vocabulary, path: base.StrPath | None, vocab_size: int | None) -> None:
  """Raises `base.DataError` if a vocabulary has over `vocab_size` tokens."""
  if vocab_size is not None and vocabulary.vocab_size > vocab_size:
    raise base.DataError(
        f"The tokenizer {path or 'of bytes'} has vocab_size="
        f"{vocabulary.vocab_size}, more than the model's {vocab_size}."
    )


def find_file(path: base.StrPath) -> pathlib.Path:
  """Returns the tokenizer's file that `path` is or has."""
  path = pathlib.Path(path).expanduser()
  if not path.is_dir():
    return path
  for name in FILES:
    if (path / name).is_file():
      return path / name
  raise base.DataError(f"There is no tokenizer in {path}: {', '.join(FILES)}.")


def encode(vocabulary: Vocabulary, documents: Sequence[corpus.CorpusDocument]) -> np.ndarray:
  """Returns the tokens of all documents, each with its end token, [tokens].

  The dtype is the smallest unsigned one. Any vocabulary but that of bytes
  raises `base.DataError` for a document that is not UTF-8.
  """
  if vocabulary is BYTES:
    content = b"".join(document.content + b"\0" for document in documents)
    return np.frombuffer(content, np.uint8)
  parts: list[Sequence[int]] = []
  for document in documents:
    try:
      text = document.content.decode()
    except UnicodeDecodeError as error:
      raise base.DataError(
          f"Cannot read {document.name}: byte {error.start} is not UTF-8; "
          "without a tokenizer, any file is read as bytes."
      ) from error
    pieces = [*_split_lines(text)] if vocabulary.in_pieces else [text]
    parts += [*vocabulary.encode_texts(pieces), [vocabulary.end]]
  dtype = np.uint16 if vocabulary.vocab_size <= 1 << 16 else np.uint32
  return np.concatenate([np.zeros(0, dtype), *(np.array(tokens, dtype) for tokens in parts)])


def _read_tokenizer(path: pathlib.Path, wanted: int | None) -> Vocabulary:
  """Returns the vocabulary of a tokenizer.json.

  What it sets for inference is switched off, and special tokens of its post-processor are
  not added.
  """
  if path.suffix == ".model":
    raise base.DataError(
        f"{path} is a file of SentencePiece, must be a {FILES[0]}: take the model's, or make one "
        "by save_pretrained of its tokenizer in transformers."
    )
  library = extras.load("tokenizers", extra="bpe", what=str(path))
  try:
    tokenizer = library.Tokenizer.from_str(path.read_bytes().decode("utf-8-sig"))
  except OSError as error:
    raise base.DataError(f"Cannot read {path}: {error.strerror or error}.") from error
  except Exception as error:  # The library raises no more precise class.
    raise base.DataError(f"{path} is damaged or no tokenizer.json ({error}).") from error
  changes = []
  if tokenizer.truncation:
    length = tokenizer.truncation["max_length"]
    changes.append(f"truncation to {length} tokens is switched off")
    tokenizer.no_truncation()
  if tokenizer.padding:
    changes.append("padding is switched off")
    tokenizer.no_padding()
  if dropout := getattr(tokenizer.model, "dropout", None):
    # Each process would draw different tokens.
    changes.append(f"dropout={dropout:.3g} of its pairs is switched off")
    tokenizer.model.dropout = None
  if changes:
    logging.warning("%s: %s.", path, "; ".join(changes))

  def encode_texts(texts: Sequence[str]) -> list[Any]:
    found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in found]

  size = tokenizer.get_vocab_size()
  ends = [n for n in map(tokenizer.token_to_id, _ENDS) if n is not None]
  added = tokenizer.get_added_tokens_decoder()
  marked = next((n for n in ends if n in added and added[n].special), None)
  usual = ends[0] if ends else None
  end = marked if wanted is None else wanted
  end = _read_end(path.parent, tokenizer.token_to_id) if end is None else end
  end = usual if end is None else end
  if end is None:
    raise base.DataError(
        f"{path} has no end-of-document token: none of {', '.join(_ENDS)}, "
        f"and no eos_token in a {_SETTINGS[0]} beside it. Give the option "
        "end_token."
    )
  if not 0 <= end < size:
    raise ValueError(f"end_token must be one of the {size} tokens of {path}, got {end}.")
  content = tokenizer.to_str().encode() + (b"" if end == usual else b" end=%d" % end)
  # Lines cannot be encoded one by one if a space is put before each text, as
  # in Llama 2, or surrounding whitespace is removed.
  a, b, both = encode_texts(["a\n", "b\n", "a\nb\n"])
  in_pieces = [*a, *b] == [*both]
  special = tuple(map(tokenizer.token_to_id, _SPECIAL))
  fingerprint = {
      "tokens": "file",
      "vocab_size": size,
      "vocab_sha256": hashlib.sha256(content).hexdigest(),
      **({} if in_pieces else {"in_pieces": False}),
  }
  special_or_none = None if None in special else special
  return Vocabulary(size, end, encode_texts, fingerprint, in_pieces, special_or_none, tokenizer)


def _read_end(folder: pathlib.Path, to_id: Callable[[str], int | None]) -> int | None:
  """Returns the end token that files of `transformers` name, if they do."""
  for name in (*_SETTINGS, "config.json"):
    settings = read_settings(folder / name)
    token = settings.get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    number = settings.get("eos_token_id")
    number = number[0] if isinstance(number, list) and number else number
    number = to_id(token) if isinstance(token, str) else number
    if isinstance(number, int):
      return number
  return None


def read_settings(file: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a file of `transformers`, {} without a file; raises `base.DataError`."""
  try:
    return dict(json.loads(file.read_bytes()))
  except FileNotFoundError:
    return {}
  except (OSError, TypeError, ValueError) as error:
    raise base.DataError(f"Cannot read {file}: {error}.") from error


def _split_lines(text: str) -> Iterator[str]:
  """Yields pieces of whole lines, because the library copies each piece."""
  start = 0
  while start < len(text):
    stop = start + _PIECE_CHARS
    if stop < len(text):
      stop = text.rfind("\n", start, stop) + 1 or stop
    yield text[start:stop]
    start = stop
