"""Values as bytes, and peers that do not follow the protocol."""

from absl.testing import parameterized
import numpy as np

from bamboo_jax.runtime.wire import protocol as protocol_lib

Frame = protocol_lib.Frame


def reader_of(data):
  """Returns a function that fills views with bytes."""
  rest = memoryview(data)

  def read_into(view):
    nonlocal rest
    view[:], rest = rest[: len(view)], rest[len(view) :]

  return read_into


class FrameTest(parameterized.TestCase):

  def test_round_trip(self):
    arrays = [np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 4)), np.array(7.0)]
    arrays.append(np.arange(4).reshape(2, 2).T)
    frames = [Frame(5, 2**40, "a/ü", payload=[*arrays]), Frame(6, 0, meta="0>1 run")]
    data, again = (
        b"".join(bytes(b) for f in frames for b in protocol_lib.buffers_of(f)) for _ in range(2)
    )
    self.assertEqual(data, again)  # It may be sent twice.
    read_into = reader_of(data)
    got = protocol_lib.read_payload(protocol_lib.read_head(read_into), read_into)
    for one, other in zip(got.payload, arrays, strict=True):
      np.testing.assert_array_equal(one, other)
      self.assertEqual(one.__array_interface__["data"][0] % 64 if one.size else 0, 0)
    self.assertEqual((got.number, got.channel, got.size), (2**40, "a/ü", 12 + 8 + 32))
    self.assertEqual(protocol_lib.read_head(read_into), frames[1])

  @parameterized.named_parameters(
      ("version", b"bjw1", "another version"),
      ("http", b"GET ", "another version"),
      ("text", protocol_lib.MAGIC + b"\xff\xff\xff\xff", "a text of 4294967295 bytes"),
      ("utf8", protocol_lib.HEADER.pack(protocol_lib.MAGIC, 1, 0, 0) + b"\xff", "not UTF-8"),
  )
  def test_rejects(self, start, message):
    with self.assertRaisesRegex(protocol_lib.ProtocolError, message):
      protocol_lib.read_head(reader_of(start.ljust(protocol_lib.HEADER.size, b"\0")))

  @parameterized.parameters("me", '[["float32"]]', '[["no_dtype", []]]', "[7]")
  def test_rejects_values(self, meta):
    with self.assertRaisesRegex(protocol_lib.ProtocolError, "a value is described as"):
      protocol_lib.read_payload(Frame(1, 0, meta=meta), reader_of(b""))


class ProtocolTest(parameterized.TestCase):
  """What of good peers is kept, sent again and delivered is explored by `tests.explorer.wire`."""

  def _make(self):
    """Returns an outbox with values, some of which are written."""
    outbox = protocol_lib.Outbox()
    outbox.begin(5)
    for _ in range(4):
      outbox.add("a", [])
    outbox.pull()
    return outbox

  @parameterized.parameters((5, 5), (5, 1), (4, 0))
  def test_rejects_a_receiver_that_forgets(self, *greeting):
    outbox = self._make()
    outbox.forget(2)
    with self.assertRaisesRegex(protocol_lib.ProtocolError, "it has . values"):
      outbox.resume(*greeting)

  def test_a_receiver_in_an_older_attempt_gets_all(self):
    outbox = self._make()
    outbox.resume(4, 9)
    self.assertEqual([outbox.pull().number for _ in range(outbox.num_values)], [0, 1, 2, 3])

  def test_values_of_an_attempt_that_never_began_here(self):
    inbox = protocol_lib.Inbox()
    self.assertEqual([f for n in (6, 7) for f in inbox.accept(Frame(n, 0))], [])
    self.assertEqual(inbox.begin(6), [])
    self.assertEqual(inbox.begin(7), [Frame(7, 0)])

  @parameterized.parameters((5, 0), (5, 2), (6, 1))
  def test_a_missing_value_is_an_error(self, *frame):
    inbox = protocol_lib.Inbox()
    inbox.begin(5)
    inbox.accept(Frame(5, 0))
    with self.assertRaisesRegex(protocol_lib.ProtocolError, "has come, expected"):
      inbox.accept(Frame(*frame))
