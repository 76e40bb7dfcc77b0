import hashlib
import json
import pathlib
import sysconfig

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.data import corpus
from tests import folders

CorpusDocument = corpus.CorpusDocument

_TEXT = (
    CorpusDocument("a", b"0123456789"),
    CorpusDocument("b", b""),
    CorpusDocument("c", "äöü€".encode()),  # 2 + 2 + 2 + 3 bytes.
)


class CorpusTest(folders.FolderCase):

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

  def test_read_library(self):
    for name in (
        *("z.py", "a.py", "email/mime/text.py", "testing.py"),
        *("note.txt", "_sysconfigdata__linux_.py", "pydoc_data/topics.py"),
        *("site-packages/numpy.py", "__pycache__/a.cpython-311.py"),
        *("test/test_a.py", "email/tests/a.py", "idlelib/idle_test/a.py"),
    ):
      path = self.folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.touch()
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
