"""Files of tokens, read where they are needed: nothing is kept in memory.

  .bin        tokens of `dtype` (nanoGPT), or with the header of llm.c
  .bin, .idx  with an index of documents (Megatron-LM, and `bamboo tokenize`)
  .npy        integers, one axis

Each read opens its file: pages of mapped memory would count as the memory of the process,
and a mapped file that is cut short kills it by a signal.
"""

import bisect
from collections.abc import Iterator, Sequence
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import corpus

# Magic number and version in the header: dtype.
_LLM_C: dict[tuple[int, int], np.dtype[Any]] = {
    (20240520, 1): np.dtype(np.uint16),
    (20240801, 7): np.dtype(np.uint32),
}
DTYPES = ("int32", "int64", "uint8", "uint16", "uint32")
_LLM_C_BYTES = 1024  # 256 int32.
_MEGATRON = b"MMIDIDX\0\0"
_MEGATRON_HEADER = np.dtype(
    [("magic", "S9"), ("version", "<u8"), ("dtype", "u1")]
    + [("num_sequences", "<u8"), ("num_documents", "<u8")]
)
_MEGATRON_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_BLOCK = 1 << 20  # Entries that are checked at a time.
_WHOLE_BYTES = 1 << 24  # Of larger files a digest reads only samples:
_NUM_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


# Of a Megatron file: the first byte of each sequence in the .bin, int64 [S]; the first
# sequence of each document, then their number [D]. Both are on disk.
Index = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class TokenFile:
  """Tokens of one file; thread-safe.

  Attributes:
    name: Path, for messages; a manifest has it without the folder.
    vocab_size: Exclusive bound of the tokens.
    end: Token that ends a document; None if there is none.
    index: Documents of the file; None: by `end`.
    has_prompts: Whether a document is an even number of sequences, by turns a prompt and
      what is learned; else each is one.
    tokens: All of them, if they are in memory rather than in a file.
  """

  name: str
  num_tokens: int
  dtype: np.dtype
  vocab_size: int
  end: int | None = None
  first_byte: int = 0
  index: Index | None = None
  has_prompts: bool = False
  tokens: np.ndarray | None = None

  def read(self, start: int, stop: int) -> np.ndarray:
    """Returns the tokens from `start` to below `stop`.

    Raises `base.DataError` if the file has changed since it was first read, or
    names the first of these tokens that the model does not have.
    """
    if self.tokens is not None:
      return self.tokens[start:stop]
    count, place = stop - start, self.first_byte + start * self.dtype.itemsize
    tokens = np.zeros(0, self.dtype)
    if _stamp(self.name) == self._stamp:
      tokens = np.fromfile(self.name, self.dtype, count, offset=place)
    if len(tokens) != count:
      raise base.DataError(f"{self.name} has changed while it was read.")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
      first = np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))[0]
      raise base.DataError(
          f"{self.name}: token {start + first} is {tokens[first]}, "
          f"must be at least 0 and below the model's vocab_size={self.vocab_size}."
      )
    return tokens

  def documents(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the documents with tokens from `start` to below `stop`.

    These are their starts, in tokens of the file, of which the first may be before `start`;
    and starts and ends of prompts, int64 [prompts, 2].

    Raises `base.DataError` if the file does not tell where they are.
    """
    nothing = np.zeros((0, 2), np.int64)
    if self.index is None:
      if self.end is None:
        raise base.DataError(
            f"{self.name} does not tell where documents begin: give the option "
            "'end_token', or an .idx file."
        )
      ends = np.flatnonzero(self.read(start, stop - 1) == self.end)
      return np.concatenate([[start], start + 1 + ends]), nothing
    (byte_S, firsts), size = self.index, self.dtype.itemsize
    end = len(firsts) - 1
    # numpy would copy all of an array that is not aligned.
    first = bisect.bisect_right(byte_S, start * size) - 1
    last = bisect.bisect_left(byte_S, stop * size, first + 1)
    first = bisect.bisect_right(firsts, first, hi=end) - 1
    last = bisect.bisect_left(firsts, last, first + 1, end)
    starts = byte_S[firsts[first:last]] // size
    if not self.has_prompts:
      return starts, nothing
    return starts, (byte_S[firsts[first] : firsts[last]] // size).reshape(-1, 2)

  def iter_ends(self) -> Iterator[np.ndarray]:
    """Yields the ends of all documents, in tokens, in blocks."""
    if self.index is None:
      for start in range(0, self.num_tokens, _BLOCK):
        stop = min(start + _BLOCK, self.num_tokens)
        ends = start + 1 + np.flatnonzero(self.read(start, stop) == self.end)
        yield ends if stop < self.num_tokens else np.append(ends, stop)
      return
    byte_S, sequence_D = self.index
    for first in range(1, len(sequence_D), _BLOCK):
      sequences = sequence_D[first : first + _BLOCK]
      starts = byte_S[np.minimum(sequences, len(byte_S) - 1)]
      is_last = sequences == len(byte_S)
      yield np.where(is_last, self.num_tokens, starts // self.dtype.itemsize)

  def prompts(self) -> tuple[np.ndarray, ...]:
    """Returns starts and ends of prompts, and ends of what is learned then."""
    assert self.index is not None and self.has_prompts, self.name
    places = np.append(self.index[0] // self.dtype.itemsize, self.num_tokens)
    return places[:-1:2], places[1::2], places[2::2]

  @functools.cached_property
  def _stamp(self) -> tuple[int, int]:
    """Size and time of the file at its first read."""
    return _stamp(self.name)


def open_file(
    path: pathlib.Path, *, dtype: str | None, vocab_size: int | None, end: int | None
) -> TokenFile:
  """Returns a file of tokens.

  Args:
    dtype: Type of the tokens in a .bin without a header, one of `DTYPES`; None:
      "uint16".
    vocab_size: Exclusive bound of the tokens; None: no bound.
    end: Token that ends a document.

  Raises:
    ValueError: There is no such `dtype` or `end`.
    base.DataError: It is damaged, or no such file; names the first fault.
  """
  if dtype not in (None, *DTYPES):
    raise ValueError(base.suggest(dtype, DTYPES, what="dtype"))
  bound = 1 << 31 if vocab_size is None else vocab_size
  if end is not None and not 0 <= end < bound:
    raise ValueError(f"end_token must be at least 0 and below vocab_size={bound}, got {end}.")
  opened = functools.partial(TokenFile, str(path), vocab_size=bound, end=end)
  num_bytes = path.stat().st_size
  if path.suffix == ".npy":
    kind, first_byte = _read_npy(path)
  elif path.with_suffix(".idx").exists():
    index, kind = _read_index(path.with_suffix(".idx"), num_bytes)
    has_prompts = bool((np.diff(index[1]) % 2 == 0).all())
    return opened(num_bytes // kind.itemsize, kind, index=index, has_prompts=has_prompts)
  else:
    kind, first_byte = _read_header(path, dtype)
  num_tokens, rest = divmod(num_bytes - first_byte, kind.itemsize)
  if rest:
    raise base.DataError(
        f"{path} has {num_bytes - first_byte} bytes of tokens, must be a "
        f"multiple of {kind.itemsize}, the size of {kind}."
    )
  return opened(num_tokens, kind, first_byte=first_byte)


def describe_file(path: pathlib.Path, name: str) -> corpus.ManifestEntry:
  """Returns the entry of a file in a manifest; raises `base.DataError`.

  The digest of a file of more than 16 MiB is that of 64 samples of 64 KiB, at
  equal distances, so that a run starts at once.
  """
  digest = hashlib.sha256()
  try:
    with open(path, "rb") as file:
      size = os.fstat(file.fileno()).st_size
      if size <= _WHOLE_BYTES:
        digest.update(file.read())
        return corpus.ManifestEntry(name, size, digest.hexdigest())
      for sample in range(_NUM_SAMPLES):
        file.seek((size - _SAMPLE_BYTES) * sample // (_NUM_SAMPLES - 1))
        digest.update(file.read(_SAMPLE_BYTES))
  except OSError as error:
    raise base.DataError(f"Cannot read {path}: {error.strerror or error}.") from error
  return corpus.ManifestEntry(name, size, f"samples:{digest.hexdigest()}")


def write_index(
    path: pathlib.Path, lengths: Sequence[int], *, dtype: np.dtype, parts: Sequence[int]
) -> None:
  """Writes the .idx file of a .bin file, in Megatron's format.

  Call it last: a .bin is complete if it has an index.

  Args:
    lengths: Tokens of each sequence.
    parts: Sequences of each document, see `TokenFile.has_prompts`.
  """
  header = np.zeros((), _MEGATRON_HEADER)
  codes = {np.dtype(kind): code for code, kind in _MEGATRON_DTYPES.items()}
  length_S = np.array(lengths, np.int32)
  byte_S = np.zeros(len(lengths), np.int64)
  np.cumsum(length_S[:-1], dtype=np.int64, out=byte_S[1:])
  sequence_D = np.append(0, np.cumsum(parts, dtype=np.int64))
  header["magic"], header["version"], header["dtype"] = (_MEGATRON, 1, codes[dtype])
  header["num_sequences"] = len(lengths)
  header["num_documents"] = len(sequence_D)
  content = (header, length_S, byte_S * dtype.itemsize, sequence_D)
  base.write_atomically(path, b"".join(part.tobytes() for part in content))


def _read_npy(path: pathlib.Path) -> tuple[np.dtype, int]:
  try:
    array = np.load(path, mmap_mode="r")
  except (OSError, ValueError, EOFError) as error:
    raise base.DataError(f"Cannot read {path}: {error}.") from error
  if array.ndim != 1 or array.dtype.kind not in "iu":
    raise base.DataError(
        f"{path} must be integers with one axis, got {array.dtype} of shape " f"{array.shape}."
    )
  return array.dtype, array.offset


def _read_header(path: pathlib.Path, dtype: str | None) -> tuple[np.dtype, int]:
  """Returns the dtype and the first byte of the tokens of a .bin."""
  with open(path, "rb") as file:
    content = file.read(_LLM_C_BYTES).ljust(_LLM_C_BYTES, b"\0")
  header = np.frombuffer(content, "<i4")
  kind = _LLM_C.get((int(header[0]), int(header[1])))
  if kind is None:
    return np.dtype(dtype or np.uint16), 0
  found = (path.stat().st_size - _LLM_C_BYTES) / kind.itemsize
  if found != header[2]:
    raise base.DataError(f"{path} has {found:g} tokens, but its header says {header[2]}.")
  return kind, _LLM_C_BYTES


def _read_index(path: pathlib.Path, num_bytes: int) -> tuple[Index, np.dtype]:
  """Returns the index in an .idx, and the dtype of its file of `num_bytes`."""
  content = np.memmap(path, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
  size = _MEGATRON_HEADER.itemsize
  if bytes(content[: len(_MEGATRON)]) != _MEGATRON or len(content) < size:
    raise base.DataError(f"{path} is not the index of a Megatron file.")
  header = np.frombuffer(bytes(content[:size]), _MEGATRON_HEADER)[0]
  sequences, documents = (int(header["num_sequences"]), int(header["num_documents"]))
  if header["dtype"] not in _MEGATRON_DTYPES:
    raise base.DataError(
        f"{path} has tokens of type {header['dtype']}, must be one of {[*_MEGATRON_DTYPES]}."
    )
  kind = np.dtype(_MEGATRON_DTYPES[int(header["dtype"])])
  cuts = np.cumsum([size, 4 * sequences, 8 * sequences, 8 * documents])
  if len(content) < cuts[-1]:
    raise base.DataError(
        f"{path} has {len(content)} bytes, but {sequences} sequences and "
        f"{documents} documents need {cuts[-1]}."
    )
  length_S, byte_S, sequence_D = (
      np.asarray(content)[a:b].view(of)
      for (a, b), of in zip(itertools.pairwise(cuts), ("<i4", "<i8", "<i8"), strict=True)
  )
  # Sequences follow each other to the end, and documents have all of them.
  lengths = length_S.astype(np.int64) * kind.itemsize
  starts = np.cumsum(lengths) - lengths
  fault = ""
  for sequence in np.flatnonzero(byte_S != starts)[:1]:
    fault = f"sequence {sequence} begins at byte {byte_S[sequence]}, must be at {starts[sequence]}"
  if not fault and (total := lengths.sum()) != num_bytes:
    fault = f"its sequences have {total} bytes, the .bin has {num_bytes}"
  if not fault and (not documents or sequence_D[0] or sequence_D[-1] != sequences):
    fault = (
        f"its documents must have the sequences from 0 to {sequences}, got {sequence_D[:1]} to "
        f"{sequence_D[-1:]}"
    )
  if fault:
    raise base.DataError(f"{path} does not fit its file: {fault}.")
  for empty in np.flatnonzero(lengths == 0)[:1]:
    logging.warning("%s: sequence %d and maybe others are empty.", path, empty)
  return (byte_S, sequence_D), kind


def _stamp(path: str) -> tuple[int, int]:
  try:
    status = os.stat(path)
  except FileNotFoundError:
    return -1, -1
  return status.st_size, status.st_mtime_ns
