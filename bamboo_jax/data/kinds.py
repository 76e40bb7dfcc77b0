"""Detects files that are not text but were given as text.

Text is any sequence of bytes in an encoding that extends ASCII: UTF-8, but also
Latin-1, KOI8-R or Shift-JIS. It has no zero byte and hardly any other control
character, does not begin like a known format, and is not JSON, whose braces and
field names are no training data. Pure.
"""

from collections.abc import Iterator
import itertools
import json
import re

# Prefixes of files, and their formats.
_BEGINNINGS = (
    (rb"PAR1.*PAR1\Z", "a Parquet file"),
    (rb"ARROW1\0\0|FEA1.*FEA1\Z|\xff{4}...\0", "an Arrow file"),
    (rb"\x93NUMPY", "an array of NumPy"),
    (rb"PK(\x03\x04|\x05\x06|\x07\x08)", "a ZIP archive, as .npz and .pt are"),
    (rb"\x1f\x8b", "data compressed by gzip"),
    (rb"\x28\xb5\x2f\xfd", "data compressed by zstd"),
    (rb"\xfd7zXZ\0", "data compressed by xz"),
    (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "data compressed by bzip2"),
    (rb"\x04\x22\x4d\x18", "data compressed by lz4"),
    (rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07", "an archive"),
    (rb".{257}ustar", "a tar archive"),
    (rb"\x80[\x02-\x05]", "a pickle of Python"),
    (rb".{5}\0\0\0\{", "a safetensors file"),
    (rb"GGUF[\x01-\x09]\0", "a GGUF file"),
    (rb"SQLite format 3\0", "an SQLite database"),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (rb"Obj\x01", "an Avro file"),
    (rb"%PDF-", "a PDF document"),
    (rb"\{\\rtf1", "an RTF document"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document"),
    (rb"\x7fELF", "a program"),
    (
        rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|II\*\0|MM\0\*",
        "an image",
    ),
    (rb"RIFF....WAVE|OggS\0|fLaC\0|ID3[\x02-\x04]", "sound"),
    (rb"\0\0\0.ftyp|\x1a\x45\xdf\xa3", "a film"),
    (rb"\xff\xfe\0\0|\0\0\xfe\xff", "UTF-32 text"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text"),
)
_BEGINNING = re.compile(
    b"|".join(
        b"(%s)" % re.sub(rb"\((?!\?)", b"(?:", b) for b, _ in _BEGINNINGS
    ),
    re.DOTALL,
)
# Control characters except \b \t \n \v \f \r, end of file and escape.
_CONTROLS = bytes({*range(1, 32)} - {*b"\b\t\n\v\f\r\x1a\x1b"})
_MOST_CONTROLS = 0.05  # Share of all bytes; 0.09 in random data.
_NUM_LINES = 100  # Examined.


def find_kind(content: bytes) -> str | None:
  """Returns the apparent kind of a file, such as "an image"; None for text."""
  if found := _BEGINNING.match(content):
    return _BEGINNINGS[found.lastindex - 1][1]
  if (at := content.find(0)) >= 0:
    if _is_utf16(content):
      return "UTF-16 text without a byte order mark"
    return f"binary data such as token ids: byte {at} is 0"
  num_controls = len(content) - len(content.translate(None, _CONTROLS))
  if num_controls > _MOST_CONTROLS * len(content):
    return "binary data such as token ids: it has many control characters"
  return _find_json(content)


def _is_utf16(content: bytes) -> bool:
  """Whether every other byte at the beginning is 0."""
  start = content[:1000]
  for first in (0, 1):
    zeros, others = start[first::2], start[1 - first :: 2]
    if len(start) > 1 and not any(zeros) and all(others):
      return True
  return False


def _find_json(content: bytes) -> str | None:
  lines = [*itertools.islice(_lines(content), _NUM_LINES)]
  num_objects = sum(isinstance(_parse(line), dict) for line in lines)
  if len(lines) > 1 and 2 * num_objects > len(lines):
    return "JSON Lines"
  text = content.strip()
  if text[:1] + text[-1:] in (b"{}", b"[]"):
    if isinstance(_parse(text), dict | list):
      return "JSON"
  return None


def _lines(content: bytes) -> Iterator[bytes]:
  """Yields the lines that are not blank, without the whitespace around."""
  for match in re.finditer(rb"[^\n]+", content):
    if line := match[0].strip():
      yield line


def _parse(text: bytes) -> object:
  """Returns the parsed JSON; None for other text."""
  try:
    return json.loads(text, strict=False)
  except (RecursionError, ValueError):
    return None
