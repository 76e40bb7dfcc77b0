"""Documents in files of text and of records, part by part.

  .jsonl, .json           an object on each line; or one list of objects
  .parquet                rows (`pyarrow`)
  .arrow, folders         rows of a data set of Hugging Face (`datasets`)
  .array_record, .arrayrecord  texts (`grain`)
  others                  lines of objects if the first is one, else a text

Lines, lists and texts may be compressed, as `.jsonl.gz` or `.txt.zst`. Parts depend on the
files and their size only, so that any process can read any of them. A text in a large file
is read line by line.

`datasets` reads data sets that it has written, but not lines and texts: its loaders turn
dates into timestamps and line ends into others, and its errors name no line.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import gzip
import io
import json
import pathlib
from typing import Any, IO
import zlib

from bamboo_jax import base
from bamboo_jax.base import extras
from bamboo_jax.data import chat

_PIECE_BYTES = 1 << 20  # Of a text.
_KINDS = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "lines",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".array_record": "array_record",
    ".arrayrecord": "array_record",
}
_COMPRESSED = (".gz", ".zst")
_BINARY = {".xz", ".bz2", ".zip", ".tar", ".pt", ".npz", ".pkl"}

# Text, tokens, text in pieces, or a record with messages.
Value = str | Sequence[int] | Iterator[str] | Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Part:
  """A range of bytes, rows or row groups of one file; or whole small files."""

  kind: str
  paths: tuple[str, ...]
  start: int = 0
  stop: int = 0


@dataclasses.dataclass(frozen=True)
class FileLine:
  """The line of a file that begins at a byte; its number is counted when it is told."""

  path: str
  place: int

  def __str__(self) -> str:
    number, left = 1, self.place
    with open_bytes(self.path) as file:
      while piece := file.read(min(_PIECE_BYTES, left)):
        number += piece.count(b"\n")
        left -= len(piece)
    return f"{self.path}, line {number}"


Where = str | FileLine  # File and row, for messages.
Rows = Iterator[tuple[Where, Any]]
# A text, a prompt and a completion, or a record with messages: a value for each field.
Document = tuple[Where, tuple[Value, ...]]


def is_records(path: pathlib.Path) -> bool:
  """Returns whether a file or folder has records rather than a text."""
  return _find_suffix(path) in _KINDS or is_hub_dataset(path)


def is_hub_dataset(path: pathlib.Path) -> bool:
  """Returns whether `save_to_disk` of `datasets` has written a folder."""
  return any((path / n).is_file() for n in ("state.json", "dataset_dict.json"))


def find_parts(paths: Sequence[pathlib.Path], part_bytes: int) -> list[Part]:
  """Returns the parts of files and of folders of `datasets`, in order.

  A part of texts or lines has about `part_bytes`; of Parquet, as many row
  groups; of other records, at most 65,536 rows.

  Raises `base.DataError` for a file that cannot be read.
  """
  texts: list[str] = []
  parts, size = [], 0
  for path in paths:
    kind = "arrow" if is_hub_dataset(path) else _find_kind(path)
    num_bytes = path.stat().st_size
    if kind == "text":
      if size and size + num_bytes > part_bytes:
        parts.append(Part("text", tuple(texts)))
        texts, size = [], 0
      texts.append(str(path))
      size += num_bytes
      continue
    if kind == "list" or (kind == "lines" and path.suffix in _COMPRESSED):
      stop = step = 1 << 62  # It has to be read from its beginning.
    elif kind == "lines":
      stop, step = num_bytes, part_bytes
    elif kind == "parquet":
      stop = _open(kind, str(path)).num_row_groups
      step = max(1, part_bytes * stop // num_bytes)
    else:
      stop, step = len(_open(kind, str(path))), 1 << 16
    parts += [
        Part(kind, (str(path),), first, min(first + step, stop)) for first in range(0, stop, step)
    ]
  return parts + ([Part("text", tuple(texts))] if texts else [])


def read_part(part: Part, fields: Sequence[str]) -> Iterator[Document]:
  """Yields the documents of a part, including those without any text.

  Args:
    fields: Names of the fields of records: one with the text or its tokens, two
      with a prompt and a completion, or that of `chat`.

  Raises:
    base.DataError: A row is damaged, or lacks a field; names it.
  """
  needs_records = len(fields) > 1 or fields == (chat.FIELD,)
  if part.kind == "text":
    if needs_records:
      raise base.DataError(f"{part.paths[0]} is a text, without the fields {fields}.")
    for name in part.paths:
      yield name, (read_text(name),)
    return
  read = {"lines": _read_lines, "list": _read_list, "parquet": _read_parquet}
  for where, row in read.get(part.kind, _read_rows)(part, fields):
    is_text = isinstance(row, str) and not needs_records
    yield where, (row,) if is_text else _pick(where, row, fields)


@contextlib.contextmanager
def open_bytes(path: base.StrPath) -> Iterator[IO[bytes]]:
  """Opens a file, and unpacks what is compressed; raises `base.DataError` if it is damaged."""
  path = pathlib.Path(path)
  if path.suffix not in _COMPRESSED:
    with open(path, "rb") as file:
      yield file
    return
  try:
    if path.suffix == ".gz":
      opened: Any = gzip.open(path)
    else:
      pyarrow = extras.load("pyarrow", extra="data", what=str(path))
      opened = io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    with opened:
      yield opened
  except (EOFError, OSError, zlib.error) as error:
    raise base.DataError(f"Cannot read {path}: {error}.") from error


def _find_suffix(path: pathlib.Path) -> str:
  return path.with_suffix("").suffix if path.suffix in _COMPRESSED else path.suffix


def _find_kind(path: pathlib.Path) -> str:
  """Returns the kind of a file by its suffix, or by its first line."""
  kind = _KINDS.get(_find_suffix(path))
  if kind not in (None, "lines"):
    return kind
  with open_bytes(path) as file:
    line = file.readline(_PIECE_BYTES)
    while kind and line and not line.strip():
      line = file.readline(_PIECE_BYTES)
  line = line.lstrip(b"\xef\xbb\xbf \t\r") if kind else line.removeprefix(b"\xef\xbb\xbf")
  if kind:
    return "list" if line[:1] == b"[" else kind
  try:
    is_object = line[:1] == b"{" and isinstance(json.loads(line), dict)
  except ValueError:
    is_object = False
  return "lines" if is_object else "text"


def _pick(where: Where, row: Any, fields: Sequence[str]) -> tuple[Value, ...]:
  """Returns the values of a row; raises `base.DataError` if they are no text or tokens."""
  if not isinstance(row, dict):
    raise base.DataError(f"{where} must be an object, got {str(row)[:50]!r}.")
  values = []
  for field in fields:
    if field not in row:
      hint = f" For chats, field={chat.FIELD}." if chat.FIELD in row else ""
      raise base.DataError(f"{where}: {base.suggest(field, row, what='field')}{hint}")
    if fields == (chat.FIELD,):
      return (row,)
    value = row[field]
    if isinstance(value, str):
      try:
        value.encode()
      except UnicodeEncodeError as error:
        raise base.DataError(f"{where}: {error}.") from error
    elif not isinstance(value, list) or not all(type(t) is int and t >= 0 for t in value):
      raise base.DataError(
          f"{where}: field {field!r} must be a text or a list of tokens, got "
          f"{str(value)[:50]!r}."
      )
    values.append(value)
  return tuple(values)


def read_text(path: str) -> Iterator[str]:
  """Yields a text in pieces of whole lines; raises `base.DataError`."""
  if _find_suffix(pathlib.Path(path)) in _BINARY:
    raise base.DataError(f"Cannot read {path}: it is no text; unpack it.")
  place = 0
  with open_bytes(path) as file:
    while piece := file.read(_PIECE_BYTES):
      piece += file.readline()
      content = piece.removeprefix(b"\xef\xbb\xbf") if not place else piece
      zero = content.find(0)
      try:
        if zero >= 0:
          raise base.DataError(
              f"Cannot read {path} as text: byte {place + zero} is 0. Files of "
              "tokens are named .bin or .npy."
          )
        yield content.decode()
      except UnicodeDecodeError as error:
        raise base.DataError(
            f"Cannot read {path} as text: byte {place + error.start} is not UTF-8."
        ) from error
      place += len(piece)


def _read_lines(part: Part, fields: Sequence[str]) -> Rows:
  """Yields the objects on the lines that begin in a range of bytes."""
  (path,), place = part.paths, part.start
  with open_bytes(path) as file:
    if place:
      file.seek(place - 1)
      place += len(file.readline()) - 1
    while place < part.stop and (line := file.readline()):
      where = FileLine(path, place)
      place += len(line)
      if not line.strip():
        continue
      try:
        yield where, json.loads(line)
      except ValueError as error:  # Also of bytes that are not UTF-8.
        raise base.DataError(f"{where}: {error}; there must be one object on each line.") from error


def _read_list(part: Part, fields: Sequence[str]) -> Rows:
  (path,) = part.paths
  with open_bytes(path) as file:
    content = file.read()
  try:
    rows = json.loads(content.decode("utf-8-sig"))
  except ValueError as error:  # It names the line; also for bytes that are not UTF-8.
    raise base.DataError(f"{path}: {error}; there must be a list of objects.") from error
  for number, row in enumerate(rows):
    yield f"{path}, object {number} of the list", row


def _read_parquet(part: Part, fields: Sequence[str]) -> Rows:
  (path,) = part.paths
  file = _open(part.kind, path)
  # All columns if one is missing, for the message; chats may have others, as tools.
  is_known = fields != (chat.FIELD,) and {*fields} <= {*file.schema_arrow.names}
  columns = [*fields] if is_known else None
  for group in range(part.start, part.stop):
    rows = file.read_row_group(group, columns=columns)
    for number in range(len(rows)):
      where = f"{path}, row {number} of row group {group}"
      try:
        yield where, rows.slice(number, 1).to_pylist()[0]
      except UnicodeDecodeError as error:
        raise base.DataError(f"{where}: {error}.") from error


def _read_rows(part: Part, fields: Sequence[str]) -> Rows:
  (path,) = part.paths
  rows = _open(part.kind, path)
  for number in range(part.start, part.stop):
    where, row = f"{path}, row {number}", rows[number]
    if isinstance(row, bytes):
      try:
        row = row.decode()
      except UnicodeDecodeError as error:
        raise base.DataError(f"{where}: {error}.") from error
    yield where, row


@functools.lru_cache(maxsize=8)
def _open(kind: str, path: str) -> Any:
  """Returns a Parquet file, or a sequence of rows that stays on disk."""
  load = functools.partial(extras.load, extra="data", what=path)
  if kind == "parquet":
    opened = load("pyarrow.parquet").ParquetFile
  elif kind == "array_record":
    opened = load("grain").sources.ArrayRecordDataSource
  elif pathlib.Path(path).is_file():
    opened = load("datasets").Dataset.from_file
  else:
    opened = load("datasets").load_from_disk
  try:
    rows = opened(path, **{"memory_map": True} if kind == "parquet" else {})
  except Exception as error:  # The libraries raise classes of their own.
    raise base.DataError(f"Cannot read {path}: {error}.") from error
  if isinstance(rows, dict):
    raise base.DataError(
        f"{path} has the data sets {', '.join(sorted(rows))}: give the folder "
        f"of one, as {path}/{sorted(rows)[0]}."
    )
  return rows
