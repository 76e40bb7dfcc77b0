"""Byte-pair tokens, trained on the text itself or read from a file.

Sennrich et al. 2016 on bytes, as in GPT-2: any text can be written, and pairs
never cross a word. The library `tokenizers` (extra `bpe`) trains and encodes,
with the same result for any number of threads; 12 MB take 3 CPU-seconds each.
"""

from collections.abc import Iterator, Mapping, Sequence
import hashlib
import os
import pathlib
import types
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import extras
from bamboo_jax.data import corpus

_END = chr(256)  # How the library writes a zero byte.
# In files: what ends a document, the first that there is; and what BERT needs.
_FILE_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]", _END)
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
_MIN_VOCAB_SIZE = 256  # The bytes.
_PIECE_CHARS = 1 << 16
_PIECES_AT_ONCE = 64


class BpeTokens:
  """Tokens as `tokens.Tokens`, made by `train_bpe` or `read_file`.

  A short text may not fill `vocab_size`.
  """

  def __init__(
      self,
      tokenizer: Any,
      *,
      vocab_size: int,
      kind: str = "bpe",
      end: str = _END,
      in_pieces: bool = True,
  ) -> None:
    """Wraps a `tokenizers.Tokenizer`.

    Args:
      end: The token that ends a document.
      in_pieces: Whether long documents may be split between lines, which saves
        memory.
    """
    self._tokenizer = tokenizer
    self.in_pieces = in_pieces
    self.end = tokenizer.token_to_id(end)
    self.vocab_size = vocab_size
    special = tuple(map(tokenizer.token_to_id, _SPECIAL))
    self.special = None if None in special else special
    self.fingerprint: Mapping[str, str | int] = {
        "tokens": kind,
        "vocab_size": vocab_size,
        "vocab_sha256": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
    }
    if not in_pieces:
      self.fingerprint = {**self.fingerprint, "in_pieces": False}

  def encode(self, documents: Sequence[corpus.Document]) -> np.ndarray:
    """Returns uint16 or uint32 [tokens]; `base.DataError` if not UTF-8."""
    dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
    end = np.array([self.end], dtype)
    parts = [np.zeros(0, dtype)]
    for document in documents:
      text = _decode(document)
      pieces = list(_split_lines(text)) if self.in_pieces else [text]
      for first in range(0, len(pieces), _PIECES_AT_ONCE):
        texts = pieces[first : first + _PIECES_AT_ONCE]
        parts += [np.array(ids, dtype) for ids in self.encode_texts(texts)]
      parts.append(end)
    return np.concatenate(parts)

  def encode_texts(self, texts: Sequence[str]) -> list[Sequence[int]]:
    """Returns the tokens of each text, without an end."""
    found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in found]

  def decode(self, tokens: np.ndarray) -> str:
    """Returns the text of `tokens`; a zero byte ends each document."""
    return str(self._tokenizer.decode(np.asarray(tokens).tolist()))


def train_bpe(
    documents: Sequence[corpus.Document],
    *,
    vocab_size: int,
    cache_dir: str | os.PathLike[str] | None = None,
) -> BpeTokens:
  """Returns tokens trained on a text, a pure function of the arguments.

  `vocab_size` is at least 256, the bytes. The vocabulary is cached in
  `cache_dir`, if given, in a file named by the digest of its inputs. Raises
  `base.DataError` if a document is not UTF-8 or a cached file is damaged, and
  `OSError`.
  """
  if vocab_size < _MIN_VOCAB_SIZE:
    raise ValueError(
        f"vocab_size must be at least {_MIN_VOCAB_SIZE}, the bytes, for "
        f"tokens='bpe', got {vocab_size}."
    )
  library = _import_tokenizers()
  if cache_dir is None:
    tokenizer = _train(library, documents, vocab_size)
    return BpeTokens(tokenizer, vocab_size=vocab_size)
  text_sha256 = corpus.make_manifest(documents).sha256
  inputs = f"{library.__version__} {vocab_size} {text_sha256}"
  digest = hashlib.sha256(inputs.encode()).hexdigest()
  path = pathlib.Path(cache_dir, f"bpe_{digest[:16]}.json")
  if path.exists():
    remedy = "remove it, and tokens='bpe' make it again"
    tokenizer = _load(library, path, remedy=remedy)
  else:
    tokenizer = _train(library, documents, vocab_size)
    path.parent.mkdir(parents=True, exist_ok=True)
    base.write_atomically(path, tokenizer.to_str())
  return BpeTokens(tokenizer, vocab_size=vocab_size)


def read_file(path: str | os.PathLike[str]) -> BpeTokens:
  """Returns the tokens of a tokenizer.json of `transformers`.

  Its settings for inference are disabled, see `_switch_off`.

  Raises `base.DataError` if it cannot be read or has no end-of-document token.
  """
  remedy = "tokens='file' needs a tokenizer.json as `transformers` saves it"
  tokenizer = _load(_import_tokenizers(), pathlib.Path(path), remedy=remedy)
  if changes := _switch_off(tokenizer):
    logging.warning("%s: %s.", path, "; ".join(changes))
  ends = [end for end in _FILE_ENDS if tokenizer.token_to_id(end) is not None]
  if not ends:
    raise base.DataError(
        f"{path} has no end-of-document token: none of "
        f"{', '.join(_FILE_ENDS[:-1])}."
    )
  size = tokenizer.get_vocab_size()
  return BpeTokens(
      tokenizer,
      vocab_size=size,
      kind="file",
      end=ends[0],
      in_pieces=_may_be_cut(tokenizer),
  )


def _switch_off(tokenizer: Any) -> list[str]:
  """Disables truncation, padding and dropout; returns the active ones.

  Special tokens of a post-processor are never added, see `BpeTokens.encode`.
  """
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
  return changes


def _may_be_cut(tokenizer: Any) -> bool:
  """Returns whether lines can be encoded one by one with the same tokens.

  They cannot if a space is prepended to each text, as in Llama 2, or
  surrounding whitespace is removed.
  """
  encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
  return bool(encode("a\n") + encode("b\n") == encode("a\nb\n"))


def _import_tokenizers() -> types.ModuleType:
  what = "tokens='bpe' and 'file', unlike 'bytes'"
  return extras.load("tokenizers", extra="bpe", what=what)


def _train(
    library: types.ModuleType,
    documents: Sequence[corpus.Document],
    vocab_size: int,
) -> Any:
  byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer = library.Tokenizer(library.models.BPE())
  tokenizer.pre_tokenizer = byte_level
  tokenizer.decoder = library.decoders.ByteLevel()
  trainer = library.trainers.BpeTrainer(
      vocab_size=vocab_size,
      initial_alphabet=byte_level.alphabet(),
      show_progress=False,
  )
  texts = (
      piece
      for document in documents
      for piece in _split_lines(_decode(document))
  )
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer


def _load(library: types.ModuleType, path: pathlib.Path, *, remedy: str) -> Any:
  try:
    text = path.read_bytes().decode("utf-8-sig")
  except OSError as error:
    raise base.DataError(
        f"Cannot read {path}: {error.strerror or error}."
    ) from error
  except UnicodeDecodeError as error:
    raise base.DataError(
        f"{path} is damaged or no tokenizer.json ({error}); {remedy}."
    ) from error
  try:
    return library.Tokenizer.from_str(text)
  except Exception as error:  # The library raises no more precise class.
    raise base.DataError(
        f"{path} is damaged or no tokenizer.json ({error}); {remedy}."
    ) from error


def _decode(document: corpus.Document) -> str:
  try:
    return document.content.decode()
  except UnicodeDecodeError as error:
    raise base.DataError(
        f"Cannot read {document.name}: byte {error.start} is not UTF-8; "
        "tokens='bytes' takes any file."
    ) from error


def _split_lines(text: str) -> Iterator[str]:
  """Yields pieces of whole lines, because the library copies each piece."""
  start = 0
  while start < len(text):
    stop = start + _PIECE_CHARS
    if stop < len(text):
      stop = text.rfind("\n", start, stop) + 1 or stop
    yield text[start:stop]
    start = stop
