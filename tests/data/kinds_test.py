"""What is text, and what other files seem to be."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import struct
import tarfile
import zipfile

from absl.testing import parameterized
import numpy as np
from PIL import Image
from safetensors import numpy as safetensors

from bamboo_jax.data import kinds

_POEM = "Über allen Gipfeln\nist Ruh,\nin allen Wipfeln\nspürest du\n"
_ROWS = [{"text": line, "id": n} for n, line in enumerate(_POEM.split("\n"))]


def _saved(save, *args, **options):
  file = io.BytesIO()
  save(file, *args, **options)
  return file.getvalue()


def _zip():
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as archive:
    archive.writestr("a.txt", _POEM)
  return file.getvalue()


def _tar():
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode="w") as archive:
    archive.addfile(tarfile.TarInfo("a.txt"))
  return file.getvalue()


def _sqlite():
  with sqlite3.connect(":memory:") as connection:
    connection.execute("create table a (b)")
    return connection.serialize()


def _tokens(low, high, dtype=np.uint16, size=1000):
  return np.random.default_rng(0).integers(low, high, size, dtype).tobytes()


class KindsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("empty", b""),
      ("ascii", b"to be, or not to be\n" * 9),
      ("utf8", _POEM.encode()),
      ("latin1", _POEM.encode("latin-1")),
      ("koi8", "мой дядя самых честных правил\n".encode("koi8-r")),
      ("shift_jis", "古池や蛙飛びこむ水の音\n".encode("shift-jis")),
      ("windows", b"a\r\nb\r\n\x1a"),
      ("old_mac", b"a\rb\rc"),
      ("pages_and_colours", b"\x0c\x1b[1mbold\x1b[0m\x08\n"),
      ("a_control_character_here_and_there", b"x" * 99 + b"\x01"),
      ("python", b"{'a': 1}\n[x for x in y]\n"),
      ("one_object_in_a_text", b'The answer is\n{"answer": 42}\nas ever.\n'),
      ("half_of_the_lines", b'{"a": 1}\nor\n'),
      ("numbers", b"1\n2\n3\n"),
      ("list_of_words", b"[sic]\n"),
      ("braces", b"{not json}"),
      ("deep", b"[" * 100_000 + b"]" * 100_000),
      ("on_parquet", b"PAR1 is how it begins."),
      ("on_zip", b"PK is not enough."),
      ("wiki", b'<doc id="1">\nText\n</doc>\n'),
      ("csv", b"a,b\n1,2\n"),
  )
  def test_text(self, content):
    self.assertIsNone(kinds.find_kind(content))

  @parameterized.named_parameters(
      ("tokens", _tokens(0, 50257), "binary data such as token ids: byte"),
      ("characters", _tokens(0, 65), "binary data such as token ids: byte"),
      ("uint32", _tokens(0, 99, np.uint32), "binary data such as token ids"),
      ("no_zero", _tokens(257, 50257).replace(b"\0", b"\1"), "binary data"),
      ("random", _tokens(1, 256, np.uint8), "control characters"),
      ("one_zero", _POEM.encode() + b"\0", "byte 58 is 0"),
      ("parquet", b"PAR1\x15\x04" + b"abc" * 9 + b"PAR1", "Parquet"),
      ("arrow", b"ARROW1\0\0abc", "Arrow"),
      ("arrow_stream", b"\xff\xff\xff\xff\x70\x01\0\0abc", "Arrow"),
      ("npy", _saved(np.save, np.arange(1, 9)), "NumPy"),
      ("npz", _saved(np.savez, a=np.arange(9)), "ZIP"),
      ("zip", _zip(), "ZIP"),
      ("gzip", gzip.compress(_POEM.encode()), "gzip"),
      ("bzip2", bz2.compress(_POEM.encode()), "bzip2"),
      ("xz", lzma.compress(_POEM.encode()), "xz"),
      ("zstd", b"\x28\xb5\x2f\xfd\x04abc", "zstd"),
      ("tar", _tar(), "tar archive"),
      ("pickle", pickle.dumps(_ROWS), "pickle"),
      ("safetensors", safetensors.save({"a": np.ones(3)}), "safetensors"),
      ("gguf", b"GGUF\x03\0\0\0", "GGUF"),
      ("sqlite", _sqlite(), "SQLite"),
      ("hdf5", b"\x89HDF\r\n\x1a\nabc", "HDF5"),
      ("pdf", b"%PDF-1.7\n", "PDF"),
      ("png", _saved(Image.new("L", (3, 3)).save, "png"), "image"),
      ("jpeg", _saved(Image.new("L", (3, 3)).save, "jpeg"), "image"),
      ("gif", _saved(Image.new("L", (3, 3)).save, "gif"), "image"),
      ("program", b"\x7fELF\x02", "program"),
      ("utf16", _POEM.encode("utf-16"), "UTF-16"),
      ("utf16_big", b"\xfe\xff" + _POEM.encode("utf-16-be"), "UTF-16"),
      ("utf16_bare", _POEM.encode("utf-16-le"), "UTF-16 text without"),
      ("utf16_bare_big", _POEM.encode("utf-16-be"), "UTF-16 text without"),
      ("utf32", _POEM.encode("utf-32"), "UTF-32"),
      ("json", json.dumps(_ROWS, indent=1).encode(), "JSON"),
      ("object", b' {"text": "a b c"}\n', "JSON"),
      (
          "json_lines",
          "\n\n".join(map(json.dumps, _ROWS)).encode(),
          "JSON Lines",
      ),
      ("more_than_half", b'{"a": 1}\n{"a": 2}\n{"a":', "JSON Lines"),
      ("double", struct.pack("<9d", *range(9)), "byte 0 is 0"),
  )
  def test_other_files(self, content, message):
    self.assertIn(message, kinds.find_kind(content))
