"""The source `files`: formats, packing, mixtures, held-out data, errors."""

import contextlib
import dataclasses
import gzip
import json
import os
import pathlib
import re
import resource
import threading
import time
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest

from bamboo_jax import base
from bamboo_jax.data import source as source_lib
from bamboo_jax.data.disk import documents as documents_lib, token_files, tokenizing
from bamboo_jax.launch import tokenize
from tests import folders


def write_words(folder, *words, unknown):
  """Writes and returns a tokenizer of words between blanks."""
  library = pytest.importorskip("tokenizers")
  numbers = {word: number for number, word in enumerate(words)}
  tokenizer = library.Tokenizer(library.models.WordLevel(numbers, unknown))
  tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
  tokenizer.save(str(folder / "tokenizer.json"))
  return tokenizer


def _u2(*tokens):
  return np.array(tokens, "<u2")


def _llm_c(magic, version, dtype):
  header = np.array([magic, version, 9] + [0] * 253, "<i4")
  return header.tobytes() + np.arange(9, dtype=dtype).tobytes()


class FilesCase(folders.FolderCase):

  def write(self, name, content):
    path = self.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
      np.save(path, content)
    elif isinstance(content, np.ndarray):
      content.tofile(path)
    else:
      path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path

  def write_rows(self, name, *rows):
    return self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

  def write_megatron(self, name, lengths, *, parts=1):
    tokens = np.arange(sum(lengths), dtype="<u2")
    path, parts = self.write(f"{name}.bin", tokens), [parts] * (len(lengths) // parts)
    token_files.write_index(path.with_suffix(".idx"), lengths, dtype=tokens.dtype, parts=parts)
    return path

  def make(self, name, *, length=4, vocab_size=1000, documents=None, **options):
    shape = {"sequence_length": length, "vocab_size": vocab_size}
    if documents is not None:
      shape["documents"] = documents
    is_number = re.compile(r"-?[\d.]+(e\d)?").fullmatch
    words = [word if is_number(word) else f"{self.folder}/{word}" for word in name.split()]
    options = {"heldout_fraction": 0.0, "cache_dir": self.folder / "c"} | options
    return source_lib.make_source(" ".join(words), shape, **options)

  def refuses(self, message, name, **options):
    with self.assertRaisesRegex(ValueError, message) as caught:
      self.make(name, **options)
    self.assertNotIn("\n", str(caught.exception))

  def epoch(self, source):
    """Returns the samples of an epoch, in the order of the files."""
    batch = source.batch(range(source.samples_per_epoch), seed=3)
    order = np.lexsort(batch["inputs"].T[::-1])
    return {name: array[order].tolist() for name, array in batch.items()}


class FormatsTest(FilesCase):

  @parameterized.named_parameters(
      ("nanogpt", np.arange(9, dtype="<u2")),
      ("llm_c", _llm_c(20240520, 1, "<u2")),
      ("llm_c_llama", _llm_c(20240801, 7, "<u4")),
      ("int64", np.arange(9, dtype="<i8"), "int64"),
  )
  def test_bin(self, content, dtype=None):
    self.write("a.bin", content)
    self.write("b.bin", b"")  # It is no sample.
    source = self.make("*.bin", dtype=dtype)
    self.assertEqual(
        self.epoch(source),
        {"inputs": [[0, 1, 2, 3], [4, 5, 6, 7]], "targets": [[1, 2, 3, 4], [5, 6, 7, 8]]},
    )
    self.assertEqual(source.epochs(3), {"data": 1.5})
    for length, count in ((8, 1), (3, 2)):  # 9 tokens have 8 targets.
      source = self.make("*.bin", length=length, dtype=dtype)
      self.assertEqual(source.samples_per_epoch, count)

  def test_npy_and_folders(self):
    for name, first in (("a", 0), ("b", 100)):
      self.write(f"d/{name}.npy", np.arange(first, first + 5, dtype=np.int32))
    self.write("d/readme.md", "not read")
    source = self.make("d")
    want = [[0, 1, 2, 3], [100, 101, 102, 103]]
    self.assertEqual(self.epoch(source)["inputs"], want)
    self.assertEqual([*source.fingerprint["files"]], ["a.npy", "b.npy"])

  def test_megatron(self):
    self.write_megatron("a", [3, 0, 5, 1])
    with self.assertLogs("absl", "WARNING") as logs:
      source = self.make("a.bin", documents=True)
    self.assertIn("a.idx: sequence 1 and maybe others are empty", logs.output[0])
    self.assertEqual(
        self.epoch(source),
        {
            "inputs": [[0, 1, 2, 3], [4, 5, 6, 7]],
            "targets": [[1, 2, -1, 4], [5, 6, 7, -1]],
            "documents": [[1, 1, 1, 3], [1, 1, 1, 1]],
        },
    )

  def test_end_token(self):
    self.write("a.bin", np.array([7, 8, 0, 9, 0, 5, 5, 5, 5], "<u2"))
    source = self.make("a.bin", documents=True, end_token=0)
    self.assertEqual(
        self.epoch(source),
        {
            "inputs": [[0, 5, 5, 5], [7, 8, 0, 9]],
            "targets": [[-1, 5, 5, 5], [8, 0, -1, 0]],
            "documents": [[1, 2, 2, 2], [1, 1, 1, 2]],
        },
    )

  @parameterized.parameters("jsonl", "parquet", "hub", "arrow", "array_record")
  def test_records(self, kind):
    rows = [{"text": "abc"}, {"text": ""}, {"text": "d\u00e9"}]
    name = {"hub": "hub", "arrow": "hub/data-00000-of-00001.arrow"}.get(kind, f"a.{kind}")
    if kind == "jsonl":
      self.write_rows(name, *rows)
    elif kind == "parquet":
      parquet = pytest.importorskip("pyarrow.parquet")
      table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
      parquet.write_table(table, self.folder / name, row_group_size=2)
    elif kind == "array_record":
      module = pytest.importorskip("array_record.python.array_record_module")
      writer = module.ArrayRecordWriter(str(self.folder / name), "group_size:1")
      for row in rows:
        writer.write(row["text"].encode())
      writer.close()
    else:
      rows = pytest.importorskip("datasets").Dataset.from_list(rows)
      rows.save_to_disk(self.folder / "hub")
    source = self.make(name, length=7)
    self.assertEqual(self.epoch(source)["inputs"], [[*b"abc\0d\xc3\xa9"]])
    source = self.make(name, length=4, packing="whole", documents=True)
    self.assertEqual(
        self.epoch(source),
        {
            "inputs": [[97, 98, 99, 0], [100, 0xC3, 0xA9, 0]],
            "targets": [[98, 99, 0, -1], [0xC3, 0xA9, 0, -1]],
            "documents": [[1] * 4, [1] * 4],
        },
    )

  @parameterized.parameters(".gz", ".zst")
  def test_compressed(self, suffix):
    """Read as they are; errors name the line, and what is cut off is found."""
    pack = {".gz": gzip.compress, ".zst": _zstd}[suffix]
    lines = b'{"text": "abc"}\n{"text": "de"}\n'
    for name, content in (
        ("a.jsonl", lines),
        ("b.json", b'[{"text": "abc"}, {"text": "de"}]'),
        ("c", lines),
        ("d.txt", b"abc"),
    ):
      self.write(name + suffix, pack(content))
      want = [[*b"\0de"], [*b"abc"]][name == "d.txt" :]
      self.assertEqual(self.epoch(self.make(name + suffix, length=3))["inputs"], want, name)
    for name, content, message in (
        ("e.jsonl", pack(lines + b'{"txt": "b"}'), "{}, line 3: .*'text'; did you mean 'txt'"),
        ("f.jsonl", pack(lines)[:-9], "Cannot read .*{}: "),
        ("g.txt", b"no such thing", "Cannot read .*{}: "),
    ):
      self.write(name + suffix, content)
      self.refuses(message.format(name + suffix), name + suffix)

  @parameterized.parameters(
      ("a.json", '[{"text": "abcd"}]'),
      ("a.json", '\ufeff [\n{"text":\n"abcd"}\n]\n'),
      ("wiki_00", '{"text": "abcd"}\n'),
      ("wiki_00", '\ufeff{"text": "abcd"}\n'),
      ("it's[1].jsonl", '{"text": "abcd"}\n'),
  )
  def test_objects_in_a_list_or_without_a_suffix(self, name, content):
    self.write(name, content)
    self.assertEqual(self.epoch(self.make(name))["inputs"], [[*b"abcd"]])

  def test_texts(self):
    self.write("d/b.txt", "b")
    self.write("d/a.txt", b"\xef\xbb\xbfa")
    source = self.make("d", length=3)
    self.assertEqual(self.epoch(source)["inputs"], [[*b"a\0b"]])
    names = [entry.name for entry in source.manifest]
    self.assertEqual(names, ["a.txt", "b.txt"])

  @parameterized.parameters(
      ("*", ["a.txt", "b.txt", "c.md"]),  # Folders are no files.
      ("**/*.txt", ["a.txt", "b.txt", "d/e.txt"]),
      ("?/e.txt", ["d/e.txt"]),
  )
  def test_patterns(self, pattern, names):
    for name in ("b.txt", "a.txt", "c.md", "d/e.txt"):
      self.write(name, "text")
    source = self.make(pattern)
    self.assertEqual([entry.name for entry in source.manifest], names)

  def test_hidden_and_linked_folders(self):
    """Each file is read once, whatever links to its folder."""
    self.write("e/c.txt", "c")
    for name in ("a.txt", "b/b.txt", ".git/x", "b/.ipynb_checkpoints/b.txt"):
      self.write(f"d/{name}", name[0])
    self.write("g/a.txt", "a")
    self.write("g/.b/a.txt", "a")
    for link in "d/0 d/b, d/b/up d, d/b/z e, d/z e, d/y no, g/up g".split(", "):
      name, target = (self.folder / part for part in link.split())
      name.symlink_to(target)
    for name, want, left_out in (
        (
            "d",
            ["a.txt", "b/b.txt", "z/c.txt"],
            [".git", "y (no file)", "b/.ipynb_checkpoints and 3 more"],
        ),
        ("g/**/*.txt", ["a.txt"], ["g/up/a.txt (links to the rest)", "and 37"]),
        ("d/b/.ipynb_checkpoints", ["b.txt"], []),
        ("d/0", ["b.txt", "z/c.txt"], [".ipynb_checkpoints", "up (links to the rest)"]),
    ):
      with self.subTest(name), self.assertLogs("absl") as logs:
        source = self.make(name, length=1)
      names = [entry.name for entry in source.manifest]
      self.assertEqual(names, want)
      lines = [m for m in logs.output if "Not read of" in m]
      self.assertLen(lines, bool(left_out))
      for part in left_out:
        self.assertIn(part, lines[0])

  def test_other_kinds_in_a_folder_are_named(self):
    self.write("d/a.txt", "abc")
    self.write("d/b/c.md", "abc")
    for name, content, line in (
        ("m.json", b'{"text": "abcd"}\n', "2 files of other kinds than m.json,"),
        ("t.bin", np.arange(9, dtype="<u2"), "3 files of other kinds than t"),
    ):
      self.write(f"d/{name}", content)
      with self.assertLogs("absl", "WARNING") as logs:
        source = self.make("d")
      self.assertEqual([*source.fingerprint["files"]], [name])
      self.assertRegex(logs.output[0], f"{line}.* as a.txt .*'{self.folder}/d/\\*.txt' reads")

  def test_a_folder_that_cannot_be_read(self):
    self.write("d/a.txt", "abc")
    self.write("d/b/c.txt", "abc").parent.chmod(0)
    with unprivileged(self.folder):
      self.refuses("Cannot read .*/d/b: Permission denied", "d")

  def test_rows_of_tokens(self):
    self.write_rows("a.jsonl", {"ids": [5, 6]}, {"ids": [7, 0]})
    source = self.make("a.jsonl", length=4, field="ids")
    self.assertEqual(self.epoch(source)["inputs"], [[5, 6, 0, 7]])

  def test_grain(self):
    grain = pytest.importorskip("grain")
    records = grain.MapDataset.range(10).map(lambda i: {"x": np.full(2, i)})
    global make_records
    make_records = lambda: records
    source = source_lib.make_source(f"{__name__}:make_records")
    batch = source.batch(range(10), seed=0)["x"]
    self.assertEqual(sorted(batch[:, 1].tolist()), list(range(10)))
    self.assertEqual(batch.dtype, np.int32)


class PackingTest(FilesCase):

  def test_whole(self):
    self.write_megatron("a", [2, 1, 3, 6, 1, 1])
    source = self.make("a.bin", packing="whole", documents=True)
    self.assertEqual(
        self.epoch(source),
        {
            "inputs": [[0, 1, 2, 0], [3, 4, 5, 0], [6, 7, 8, 9], [10, 11, 12, 13]],
            "targets": [[1, -1, -1, -1], [4, 5, -1, -1], [7, 8, 9, 10], [11, -1, -1, -1]],
            "documents": [[1, 1, 2, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 2, 3]],
        },
    )

  def test_prompts(self):
    rows = [{"q": "ab", "a": "cd"}, {"q": "e", "a": ""}, {"q": "", "a": "f"}]
    self.write_rows("a.jsonl", *rows)
    # abcd0 e0 f0: what follows "b" and "e" is learned, what follows "a" is not.
    for loss, first in (("completion", -1), ("all", 98)):
      source = self.make("a.jsonl", length=10, packing="whole", field="q,a", loss=loss)
      want = [first, 99, 100, 0, -1, 0, -1, 0, -1, -1]
      self.assertEqual(self.epoch(source)["targets"], [want])
    self.write_megatron("one", [4, 4])
    self.refuses("one.bin has no prompts", "one.bin", loss="completion")

  @parameterized.product(packing=["stream", "whole"], documents=[None, True], seed=[0, 1, 2])
  def test_samples_without_targets_are_counted(self, packing, documents, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, 40)
    lengths[::2] = np.where(rng.random(20) < 0.3, 0, 2 * lengths[::2])
    self.write_megatron("a", lengths.tolist(), parts=2)
    options = {"packing": packing, "documents": documents, "loss": "completion"}
    with self.assertLogs("absl", "WARNING") as logs:
      source = self.make("a.bin", **options)
    targets = np.array(self.epoch(source)["targets"])
    empty, long = (targets < 0).all(1).sum(), (lengths[::2] > 4).sum()
    self.assertGreater(empty, 0)
    self.assertEndsWith(
        logs.output[-1],
        f"a.bin: {empty} of {len(targets)} samples have no token to learn; "
        f"{long} of 20 prompts have more than sequence_length=4 tokens.",
    )

  def test_a_sample_must_have_a_target(self):
    self.write_megatron("a", [9, 1], parts=2)
    options = {"field": "q,a"}
    self.refuses("a.bin: 2 of 2 samples have no .* 1 of 1 pr", "a.bin", **options)
    self.write_megatron("b", [1, 9], parts=2)
    with self.assertNoLogs("absl"):
      self.make("b.bin", **options)

  def test_heldout(self):
    self.write("a.bin", np.arange(41, dtype="<u2"))
    self.write("b.bin", np.arange(500, 509, dtype="<u2"))
    source = self.make("a.bin", heldout_fraction=0.2)
    self.assertEqual((source.samples_per_epoch, source.num_heldout), (8, 2))
    self.assertEqual(max(self.epoch(source)["inputs"])[0], 28)
    heldout = source.heldout_batch([0, 1])["inputs"]
    self.assertEqual(heldout.tolist(), [[32, 33, 34, 35], [36, 37, 38, 39]])
    self.assertEqual(self.make("a.bin", heldout_fraction=0).num_heldout, 0)
    source = self.make("a.bin", heldout_path=f"{self.folder}/b.bin")
    self.assertEqual((source.samples_per_epoch, source.num_heldout), (10, 2))
    self.assertEqual(source.heldout_batch([1])["inputs"][0, 0], 504)


class MixtureTest(FilesCase):

  def setUp(self):
    super().setUp()
    self.write("a.bin", np.arange(401, dtype="<u2"))
    self.write("b.bin", np.arange(500, 541, dtype="<u2"))

  def test_a_sample_depends_on_seed_and_index_only(self):
    """So its order is that of any layout; see `batches_test`."""
    indices = [70, 100, 3, 70]
    whole, some = (
        self.make("2 a.bin 1 b.bin").batch(drawn, seed=7) for drawn in (range(101), indices)
    )
    for name, array in some.items():
      np.testing.assert_array_equal(array, whole[name][indices])

  def test_weights(self):
    source = self.make("3 a.bin 1 b.bin", heldout_fraction=0.1)
    firsts = source.batch(range(1 << 14), seed=1)["inputs"][:, 0]
    self.assertEqual((firsts < 500).sum(), 3 << 12)
    self.assertAlmostEqual((firsts[:1000] < 500).mean(), 0.75, delta=0.06)
    # Each epoch of a part has all of its samples.
    self.assertEqual(sorted(firsts[firsts >= 500][:9].tolist()), list(range(500, 536, 4)))
    self.assertEqual(
        source.epochs(1 << 14),
        {f"{self.folder}/a.bin": (3 << 12) / 90, f"{self.folder}/b.bin": (1 << 12) / 9},
    )
    self.assertEqual(source.num_heldout, 2)
    heldout = source.heldout_batch([0, 1])["inputs"][:, 0]
    self.assertEqual(heldout.tolist(), [360, 536])

  def test_blocks_follow_each_other(self):
    self.write("c.bin", np.arange(20_001, dtype="<u2"))
    source = self.make("1 c.bin 0 b.bin", length=1, vocab_size=1 << 16)
    batch = source.batch(range(20_000), seed=0)["inputs"]
    self.assertLen(np.unique(batch), 20_000)

  @parameterized.parameters(
      ("0 a.bin 0 b.bin", "must not all be 0"),
      ("1e9 a.bin 1 b.bin", "weight of .*b.bin is too small"),
      ("-1 a.bin 2 b.bin", "weight of .* at least 0, got -1"),
      ("1 a.bin 2", "a weight before each path"),
      ("1 a.bin 2 a.bin", "each path once"),
  )
  def test_refuses(self, name, message):
    self.refuses(message, name)


class BadInputTest(FilesCase):

  @parameterized.parameters(
      ("a.bin", _u2(*range(9), 1000, 2000), "a.bin: token 9 is 1000, must be .*=1000"),
      ("a.bin", np.array([1, -5, 3, 4, 5], "<i8"), "a.bin: token 1 is -5", {"dtype": "int64"}),
      ("a.bin", b"1234567", "a.bin has 7 bytes .* multiple of 2"),
      ("a.bin", b"1234567", "did you mean 'uint16'", {"dtype": "uint61"}),
      ("a.bin", _u2(), "sample of sequence_length=4"),
      ("a.bin", _u2(*range(9)), "a.bin does not tell where doc", {"documents": True}),
      ("a.bin", _u2(*range(9)), "end_token must be .*=1000, got 1000", {"end_token": 1000}),
      ("a.bin", _u2(*range(9)), "sample of sequence_length=9", {"length": 9}),
      ("a.bin", np.array([20240520, 1, 9] + [0] * 254, "<i4"), "has 2 tokens, but its header .* 9"),
      ("a.npy", np.zeros((2, 3)), "a.npy must be integers with one axis.*float64"),
      ("a.npy", np.zeros(9, np.int16), "z.npy has tokens of int32, must be int16"),
      ("a.txt", b"good\nb\xffd", "a.txt as text: byte 6 is not UTF-8"),
      ("a.txt", b"1\0", "a.txt as text: byte 1 is 0"),
      ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "a.jsonl, line 2: .*utf-8"),
      ("a.jsonl", '{"text": "a"}\n{"text"}\n', "a.jsonl, line 2: "),
      ("a.jsonl", "", "field must be one name, or two, got 'a,b,c'", {"field": "a,b,c"}),
      ("a.jsonl", "", "There is no text: .*.jsonl is empty"),
      ("a.jsonl", '{"text": 5}', "field 'text' must be a text or a list .* '5'"),
      ("a.jsonl", '{"text": "\\ud800"}\n', "a.jsonl, line 1: .*surrogates"),
      ("a.jsonl", '{"text": [300]}', "the token 300, must be below .*256"),
      ("a.json", "{\n", "a.json, line 1.* one object on each"),
      ("a.json", "5\n", "a.json, line 1 must be an object, got '5'"),
      ("a.json", '[{"text": "a"}, 5]', "a.json, object 1 of the list must be an object, got '5'"),
      ("a.json", '[{"text": ""}, {"txt": ""}]', "a.json, object 1 of the list: .* mean 'txt'"),
      ("a.json", '[\n{"text": ""},\n{"text"}]', "a.json: .* line 3 column 8 .* list of objects"),
      ("a.json", b'[{"text": "\xff"}]', "a.json: .*utf-8.* byte 0xff in position 11"),
      ("a.parquet", b"PAR1", "Cannot read .*a.parquet"),
  )
  def test_refuses(self, name, content, message, options=None):
    if name.endswith(".npy"):
      self.write("z.npy", np.zeros(9, np.int32))
    self.write(name, content)
    self.refuses(message, f"*{name[1:]}", **options or {})

  def test_no_file(self):
    self.write("corpus.txt", "text")
    (self.folder / "none").mkdir()
    os.mkfifo(self.folder / "none" / "pipe")
    missing = "^No file matches '{0}/{1}'"
    for name, message in (
        ("*.text", missing),
        ("corpsu.txt", missing + "; did you mean 'corpus.txt'?$"),
        ("zzz", missing + ".$"),
        ("no/a.txt", missing + "; there is no folder '{0}/no'.$"),
        ("none", missing + ": that folder has no files.$"),
        ("none/*", missing),
    ):
      message = message.format(self.folder, name).replace("*", "\\*").replace("?", "\\?")
      self.refuses(message, name)

  def test_an_index_that_does_not_fit(self):
    path = self.write_megatron("a", [3, 2, 4])
    good = path.with_suffix(".idx").read_bytes()
    for content, message in (
        (b"", "a.idx is not the index"),
        (good[:-1], "a.idx has .* bytes, but 3 sequences and 4 documents need"),
        (good.replace(b"\6\0\0\0", b"\7\0\0\0"), "sequence 1 begins at byte 7"),
        (good[:17] + b"\x07" + good[18:], "tokens of type 7"),
    ):
      path.with_suffix(".idx").write_bytes(content)
      self.refuses(message, "a.bin")
    path.with_suffix(".idx").write_bytes(good)
    path.write_bytes(path.read_bytes()[:-2])
    self.refuses("its sequences have 18 bytes, the .bin has 16", "a.bin")

  def test_folders_of_data_sets_without_rows_of_their_own(self):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["abc"]})
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(self.folder / "both")
    self.refuses("both has the data sets test, train: give the folder of one, as .*test", "both")
    datasets.Dataset.from_dict({"text": []}).save_to_disk(self.folder / "none")
    self.refuses("Cannot read .*none", "none")

  def test_a_file_that_changes_while_it_is_read(self):
    path = self.write("a.bin", np.arange(900, dtype="<u2"))
    source = self.make("a.bin")
    source.batch([0], seed=0)
    os.truncate(path, 1802)
    with self.assertRaisesRegex(base.DataError, "a.bin has changed while it"):
      source.batch([1], seed=0)

  def test_a_text_that_changes_while_it_is_read(self):
    path = self.write_rows("a.jsonl", {"text": "abcd"})
    read = documents_lib.read_part

    def read_and_change(part, fields):
      yield from read(part, fields)
      path.write_text(path.read_text() + "\n")

    with mock.patch.object(documents_lib, "read_part", read_and_change):
      self.refuses("a.jsonl has changed while it was read", "a.jsonl")
    self.assertEqual([*self.folder.glob("c/*/*.idx")], [])

  def test_empty_documents_are_named(self):
    self.write_rows("a.jsonl", {"text": "abcd"}, {"text": ""}, {"text": ""})
    with self.assertLogs(level="WARNING") as logs:
      self.make("a.jsonl")
    message = "Documents without text left out: 2, the first is.*a.jsonl, line 2"
    self.assertRegex(logs.output[0], message)


class CommandTest(FilesCase):

  def test_command(self):
    path = self.write_rows("a.jsonl", *({"text": f"row {i}"} for i in range(9)))
    out = self.folder / "out"

    flags = tokenize.TokenizeFlags(path=str(path), out=str(out), num_processes=2)
    for want in (
        f"{out}: 54 tokens of 9 documents written, .* tokens/s; parts: 1",
        f"{out}: 0 tokens of 0 documents written",
    ):
      with folders.printed() as printed:
        tokenize.main(flags)
      self.assertRegex(printed.getvalue(), want)
    with self.assertRaisesRegex(ValueError, "has tokens with fields="):
      tokenize.main(dataclasses.replace(flags, field="txt"))


class TokenizeTest(FilesCase):

  def setUp(self):
    super().setUp()
    self.rows = [{"text": f"row {i} " + "x" * (i % 7)} for i in range(200)]
    self.path = self.write_rows("a.jsonl", *self.rows)
    self.task = tokenizing.TokenizingTask([("a.jsonl", self.path)], None, part_bytes=1000)

  def tokens(self, out):
    return b"".join(p.read_bytes() for p in sorted(out.glob("*.bin")))

  def test_any_number_of_processes_and_interruptions(self):
    want = b"".join(row["text"].encode() + b"\0" for row in self.rows)
    *_, done = tokenizing.run(self.task, self.folder / "x", num_workers=0)
    self.assertEqual(self.tokens(self.folder / "x"), want)
    self.assertEqual(done, (5, 5, 200, len(want)))
    # Interrupted after 2 parts, and within the third.
    out = self.folder / "y"
    run = tokenizing.run(self.task, out, num_workers=0)
    for _ in range(3):
      next(run)
    run.close()
    (out / "00002.bin").write_bytes(b"part")
    with self.assertRaisesRegex(base.DataError, "00002.idx is missing"):
      self.make("y")
    first, *_, last = tokenizing.run(self.task, out, num_workers=2)
    self.assertEqual((first.num_finished, last.num_finished), (2, 5))
    self.assertEqual(self.tokens(out), want)
    source = self.make("y", documents=True)
    self.assertEqual(source.fingerprint["tokenizer"], "bytes")
    self.path.write_text(self.path.read_text().replace("row 1 ", "ROW 1 "))
    with self.assertRaisesRegex(ValueError, "a.jsonl has changed"):
      next(tokenizing.run(dataclasses.replace(self.task), out, num_workers=0))

  def test_nodes_of_one_machine_wait_for_each_other(self):
    self.make("a.jsonl")
    (out,) = (self.folder / "c").iterdir()
    running = tokenizing.run(self.task, out, num_workers=0)
    facts = (out / "tokens.json").read_text()
    with base.lock_folder(out):
      with self.assertRaisesRegex(ValueError, "is in use by process"):
        next(running)
      (out / "tokens.json").unlink()  # As of a node that is still at work.
      other = threading.Thread(target=self.make, args=("a.jsonl",))
      other.start()
      other.join(0.2)
      self.assertTrue(other.is_alive())
    other.join()
    self.assertEqual((out / "tokens.json").read_text(), facts)

  def test_a_cache_that_cannot_be_written(self):
    """A finished one of another user is used; else the option is named."""
    cache = self.folder / "c"
    want = self.epoch(self.make("a.jsonl"))
    (out,) = cache.iterdir()
    with unprivileged(self.folder, cache, out):
      self.assertEqual(self.epoch(self.make("a.jsonl")), want)
    (out / "00000.idx").unlink()
    message = "Cannot keep tokens of texts in .*: Permission denied. Name .*"
    message += "config.data.options.cache_dir.$"
    with unprivileged(self.folder, cache, out):
      self.refuses(message, "a.jsonl")
      self.refuses(message, "a.jsonl", field="x")  # Another cache.
      self.refuses(message, "a.jsonl", cache_dir=out / "x" / "y")
    self.path.chmod(0)
    with unprivileged(self.folder):
      self.refuses("Cannot read .*/a.jsonl: Permission denied.$", "a.jsonl")

  def test_a_user_without_a_home(self):
    self.enterContext(mock.patch.dict(os.environ, {"XDG_CACHE_HOME": ""}))
    error = RuntimeError("Could not determine home directory.")
    self.enterContext(mock.patch.object(pathlib.Path, "home", side_effect=error))
    self.refuses("home directory. Name .*cache_dir", "a.jsonl", cache_dir=None)
    self.refuses("cache_dir='s3://b/c' is a URL", "a.jsonl", cache_dir="s3://b/c")

  def test_tokenizers(self):
    write_words(self.folder, "row", "x", "</s>", unknown="x")
    options = {"tokenizer": str(self.folder), "length": 3, "vocab_size": 3}
    source = self.make("a.jsonl", **options)
    self.assertEqual(self.epoch(source)["inputs"][0][:2], [0, 1])
    self.assertIn([0, 1, 1], self.epoch(self.make("a.jsonl", end_token=1, **options))["inputs"])
    self.refuses("vocab_size=3, more than .* 2", "a.jsonl", **options | {"vocab_size": 2})
    [*_] = tokenizing.run(self.task, self.folder / "bytes", num_workers=0)
    self.refuses("bytes has tokens of another", "bytes", tokenizer=str(self.folder))


class LargeFileTest(FilesCase):

  def test_ten_gigabytes(self):
    path = self.write("a.bin", b"")
    os.truncate(path, 10 << 30)  # Sparse: it takes no space.
    start, before = time.process_time(), _peak_bytes()
    source = self.make("a.bin", length=1024, heldout_fraction=0.02)
    for first in range(0, 4096, 32):
      source.batch(range(first, first + 32), seed=0)
    self.assertLess(_peak_bytes() - before, 200e6)
    # Of 4096 random samples of 2 KiB; usually a tenth.
    self.assertLess(time.process_time() - start, 3.0)


@contextlib.contextmanager
def unprivileged(*folders):
  """Makes folders read-only, and this process another user if it is root."""
  uid = os.geteuid()
  for folder in folders:
    folder.chmod(0o555)
  try:
    os.seteuid(uid or 65534)  # The superuser may write anywhere.
    yield
  finally:
    os.seteuid(uid)
    for folder in folders:
      folder.chmod(0o755)


def _zstd(content):
  pyarrow = pytest.importorskip("pyarrow")
  stream = pyarrow.BufferOutputStream()
  with pyarrow.output_stream(stream, compression="zstd") as file:
    file.write(content)
  return stream.getvalue().to_pybytes()


def _peak_bytes():
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
