"""Trained tokenizers from files: tokenizer.json, SentencePiece; or bytes."""

from collections.abc import Mapping, Sequence
import hashlib
import os
import pathlib

import numpy as np

from bamboo_jax import base
from bamboo_jax.base import extras
from bamboo_jax.data import bpe
from bamboo_jax.data import corpus
from bamboo_jax.data import tokens as tokens_lib

# In a folder, the first that exists.
FILES = ("tokenizer.json", "tokenizer.model", "spiece.model")


class SentencePieces:
  """Tokens as `tokens.Tokens` of a SentencePiece file."""

  special: tuple[int, ...] | None = None
  in_pieces = False  # A space is put before each text.

  def __init__(self, path: pathlib.Path) -> None:
    """Reads a file; raises `base.DataError` if it is damaged or has no end."""
    library = extras.load("sentencepiece", extra="data", what=str(path))
    try:
      content = path.read_bytes()
      self._model = library.SentencePieceProcessor(model_proto=content)
    except (OSError, RuntimeError) as error:
      raise base.DataError(f"Cannot read {path}: {error}.") from error
    self.end, self.vocab_size = self._model.eos_id(), len(self._model)
    if self.end < 0:
      raise base.DataError(f"{path} has no end-of-document token (eos_id).")
    self.fingerprint: Mapping[str, str | int] = {
        "tokens": "sentencepiece",
        "vocab_size": self.vocab_size,
        "vocab_sha256": hashlib.sha256(content).hexdigest(),
    }

  def encode_texts(self, texts: Sequence[str]) -> list[Sequence[int]]:
    """Returns the tokens of each text, without an end."""
    tokens: list[Sequence[int]] = self._model.encode(list(texts))
    return tokens

  def encode(self, documents: Sequence[corpus.Document]) -> np.ndarray:
    """Returns the tokens of all documents, each with its end, int32."""
    texts = [document.content.decode() for document in documents]
    parts = [[*ids, self.end] for ids in self.encode_texts(texts)]
    return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)


def read_vocabulary(
    path: str | os.PathLike[str] | None,
) -> tokens_lib.Tokens:
  """Returns the vocabulary of a file, or of a folder with one; None: bytes.

  Raises `base.DataError` if there is none or it is damaged.
  """
  if path is None:
    return tokens_lib.ByteTokens()
  path = find_file(path)
  if path.suffix == ".model":
    return SentencePieces(path)
  return bpe.read_file(path)


def find_file(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the tokenizer's file that `path` is or has."""
  path = pathlib.Path(path).expanduser()
  if not path.is_dir():
    return path
  for name in FILES:
    if (path / name).is_file():
      return path / name
  raise base.DataError(f"There is no tokenizer in {path}: {', '.join(FILES)}.")
