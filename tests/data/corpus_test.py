import hashlib
import json
import os
import pathlib
import sysconfig

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.data import corpus
from bamboo_jax.data.disk import files
from tests import folders

CorpusDocument = corpus.CorpusDocument

_TEXT = (
    CorpusDocument("a", b"0123456789"),
    CorpusDocument("b", b""),
    CorpusDocument("c", "äöü€".encode()),  # 2 + 2 + 2 + 3 bytes.
)


class CorpusTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("nothing", 0.0, 19),
      ("one_character", 0.01, 16),
      ("moved_to_a_character", 4 / 19, 14, "abc", "c"),
      ("at_a_character", 5 / 19, 14),
      ("whole_document", 9 / 19, 10),
      ("through_two_documents", 0.5, 9),
      ("nearly_all", 0.99, 0),
  )
  def test_split_tail(self, fraction, head_bytes, *names):
    head, tail = corpus.split_tail(_TEXT, fraction=fraction)
    if names:  # Both parts of a document that is cut have its name.
      self.assertEqual(names, tuple("".join(d.name for d in part) for part in (head, tail)))
    whole = b"".join(d.content for d in _TEXT)
    self.assertEqual(b"".join(d.content for d in head), whole[:head_bytes])
    self.assertEqual(b"".join(d.content for d in tail), whole[head_bytes:])

  def test_manifest(self):
    manifest = corpus.make_manifest(_TEXT[:2])
    a, b = (hashlib.sha256(d.content).hexdigest() for d in _TEXT[:2])
    everything = hashlib.sha256(f"{a}  a\n{b}  b\n".encode()).hexdigest()
    self.assertEqual(
        json.loads(corpus.render_manifest(manifest)),
        {
            "sha256": everything,
            "num_bytes": 10,
            "files": [
                {"name": "a", "num_bytes": 10, "sha256": a},
                {"name": "b", "num_bytes": 0, "sha256": b},
            ],
        },
    )


class ReadersTest(folders.FolderCase):

  def _write(self, *names, content=b"text"):
    for name in names:
      path = self.folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content)

  @parameterized.named_parameters(
      ("one_file", "b.txt", ["b.txt"]),
      ("wildcard", "*.txt", ["a.txt", "b.txt"]),
      ("folders_are_no_files", "*", ["a.txt", "b.txt", "c.md"]),
      ("below", "d/*", ["e.txt"]),
      ("recursive", "**/*.txt", ["a.txt", "b.txt", "d/e.txt"]),
      ("root_is_before_the_wildcard", "?/e.txt", ["d/e.txt"]),
  )
  def test_read_files(self, pattern, names):
    self._write("b.txt", "a.txt", "c.md", "d/e.txt")
    documents = files.read_texts(str(self.folder / pattern))
    self.assertEqual([d.name for d in documents], names)
    self.assertEqual({d.content for d in documents}, {b"text"})

  def test_an_empty_file_among_others_is_a_document(self):
    self._write("a.txt", content=b"")
    self._write("b.txt")
    documents = files.read_texts(str(self.folder / "*.txt"))
    self.assertEqual([d.content for d in documents], [b"", b"text"])

  def test_refuses(self):
    self._write("corpus.txt")
    self._write("empty/a.txt", content=b"")
    (self.folder / "none").mkdir()
    (self.folder / "pipe").mkdir()
    os.mkfifo(self.folder / "pipe/a.txt")
    missing = "^No file matches '{0}/{1}'"
    for name, message in (
        ("*.text", missing),
        ("corpsu.txt", missing + "; did you mean 'corpus.txt'?$"),
        ("zzz", missing + ".$"),
        ("no/a.txt", missing + "; there is no folder '{0}/no'.$"),
        ("none", missing + ": that folder has no files.$"),
        ("empty/*", "a.txt is empty"),
        ("pipe/*", missing),
    ):
      message = message.format(self.folder, name).replace("*", "\\*").replace("?", "\\?")
      with self.assertRaisesRegex(base.DataError, message):
        files.read_texts(str(self.folder / name))

  def test_read_library(self):
    self._write("z.py", "a.py", "email/mime/text.py", "testing.py")
    self._write("note.txt", "_sysconfigdata__linux_.py", "pydoc_data/topics.py")
    self._write("site-packages/numpy.py", "__pycache__/a.cpython-311.py")
    self._write("test/test_a.py", "email/tests/a.py", "idlelib/idle_test/a.py")
    documents = corpus.read_library(self.folder)
    self.assertEqual(
        [d.name for d in documents],
        ["lib/a.py", "lib/email/mime/text.py", "lib/testing.py", "lib/z.py"],
    )

  @parameterized.parameters("", "absent")
  def test_library_without_sources(self, name):
    with self.assertRaises(base.DataError):
      corpus.read_library(self.folder / name)

  def test_read_stdlib(self):
    documents = corpus.read_stdlib()
    by_name = {d.name: d.content for d in documents}
    self.assertLen(by_name, len(documents))
    self.assertEqual(list(by_name), sorted(by_name))
    self.assertIn(b'"assert" statement', by_name["help/assert"])
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    self.assertEqual(by_name["lib/json/decoder.py"], (stdlib / "json" / "decoder.py").read_bytes())
    folders = {f for name in by_name for f in name.split("/")[:-1]}
    self.assertNoCommonElements(folders, {"site-packages", "dist-packages", "__pycache__", "test"})
    num_bytes = sum(map(len, by_name.values()))
    self.assertBetween(num_bytes, 4e6, 20e6)
