"""Tokens of a text: its bytes; byte pairs are in `bpe`.

Both end each document with the token of a zero byte, which does not occur in
text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bamboo_jax.data import corpus


class Tokens(Protocol):
  """A vocabulary of tokens from 0 to `vocab_size - 1`.

  Attributes:
    fingerprint: Everything that the tokens depend on, as plain values.
    in_pieces: Whether lines of a text may be encoded one by one.
    end: Token that ends a document.
    special: Padding, [CLS], [SEP] and [MASK], if there are any.
  """

  vocab_size: int
  end: int
  special: tuple[int, ...] | None
  fingerprint: Mapping[str, str | int]
  in_pieces: bool

  def encode_texts(self, texts: Sequence[str]) -> list[Sequence[int]]:
    """Returns the tokens of each text, without an end."""

  def encode(self, documents: Sequence[corpus.Document]) -> np.ndarray:
    """Returns the tokens of all documents, each with its end, in one array.

    The dtype is the smallest unsigned one, the shape [tokens]. Raises
    `base.DataError` if a document cannot be written in these tokens.
    """


class ByteTokens:
  """Each byte is a token."""

  vocab_size = 256
  end = 0
  special: tuple[int, ...] | None = None
  in_pieces = True
  fingerprint: Mapping[str, str | int] = {"tokens": "bytes", "vocab_size": 256}

  def encode_texts(self, texts: Sequence[str]) -> list[Any]:
    """Returns the bytes of each text in UTF-8."""
    return [np.frombuffer(text.encode(), np.uint8) for text in texts]

  def encode(self, documents: Sequence[corpus.Document]) -> np.ndarray:
    """Returns the bytes of all documents, uint8 [tokens]; never raises."""
    text = b"".join(document.content + b"\0" for document in documents)
    return np.frombuffer(text, np.uint8)
