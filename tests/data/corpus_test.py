import hashlib
import json

from absl.testing import parameterized

from bamboo_jax.data import corpus

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
      ("moved_to_a_character", 4 / 19, 14),
      ("at_a_character", 5 / 19, 14),
      ("whole_document", 9 / 19, 10),
      ("through_two_documents", 0.5, 9),
      ("nearly_all", 0.99, 0),
  )
  def test_split_tail(self, fraction, head_bytes):
    head, tail = corpus.split_tail(_TEXT, fraction=fraction)
    whole = b"".join(d.content for d in _TEXT)
    self.assertEqual(b"".join(d.content for d in head), whole[:head_bytes])
    self.assertEqual(b"".join(d.content for d in tail), whole[head_bytes:])

  def test_both_parts_of_a_cut_document_keep_its_name(self):
    head, tail = corpus.split_tail(_TEXT, fraction=4 / 19)
    self.assertEqual(head, (_TEXT[0], _TEXT[1], CorpusDocument("c", "äö".encode())))
    self.assertEqual(tail, (CorpusDocument("c", "ü€".encode()),))

  def test_manifest(self):
    manifest = corpus.make_manifest(_TEXT[:2])
    a, b = (hashlib.sha256(d.content).hexdigest() for d in _TEXT[:2])
    everything = hashlib.sha256(f"{a}  a\n{b}  b\n".encode()).hexdigest()
    self.assertEqual(manifest.sha256, everything)
    self.assertEqual(
        json.loads(manifest.to_json()),
        {
            "sha256": everything,
            "num_bytes": 10,
            "files": [
                {"name": "a", "num_bytes": 10, "sha256": a},
                {"name": "b", "num_bytes": 0, "sha256": b},
            ],
        },
    )

  @parameterized.named_parameters(
      ("content", (CorpusDocument("a", b"1"), CorpusDocument("b", b"3"))),
      ("name", (CorpusDocument("a", b"1"), CorpusDocument("c", b"2"))),
      ("order", (CorpusDocument("b", b"2"), CorpusDocument("a", b"1"))),
      ("boundary", (CorpusDocument("a", b"12"), CorpusDocument("b", b""))),
      ("number", (CorpusDocument("a", b"1"),)),
  )
  def test_digest_changes_with(self, other):
    text = (CorpusDocument("a", b"1"), CorpusDocument("b", b"2"))
    self.assertNotEqual(corpus.make_manifest(other).sha256, corpus.make_manifest(text).sha256)
