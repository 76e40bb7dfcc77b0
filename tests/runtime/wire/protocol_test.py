"""What is sent, sent again, held and dropped; `tests.explorer.wire` explores it."""

from absl.testing import absltest, parameterized
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

  def _make(self, num_values=4, num_written=3, attempt=5):
    """Returns an outbox with values of 10 bytes each."""
    outbox = protocol_lib.Outbox()
    outbox.begin(attempt)
    for _ in range(num_values):
      outbox.add("a", [np.zeros(10, np.uint8)])
    for _ in range(num_written):
      outbox.pull()
    return outbox

  def _drain(self, outbox):
    numbers = []
    while outbox.has_unsent:
      numbers.append(outbox.pull().number)
    return numbers

  #    Greeting of the receiver; bytes kept and values written then.
  @parameterized.parameters(
      ((5, 0), 40, [0, 1, 2, 3]),
      ((5, 2), 20, [2, 3]),
      ((5, 3), 10, [3]),
      ((4, 9), 40, [0, 1, 2, 3]),  # It has not heard of this attempt.
      ((6, 0), 0, []),  # It has left this attempt.
  )
  def test_continues_from_a_greeting(self, greeting, kept_bytes, numbers):
    outbox = self._make()
    outbox.resume(*greeting)
    self.assertEqual(outbox.kept_bytes, kept_bytes)
    self.assertEqual(self._drain(outbox), numbers)
    outbox.add("b", [])
    self.assertEqual(self._drain(outbox), [4])

  @parameterized.parameters((5, 5), (5, 1), (4, 0))
  def test_rejects_a_receiver_that_forgets(self, *greeting):
    outbox = self._make()
    outbox.forget(2)
    with self.assertRaisesRegex(protocol_lib.ProtocolError, "it has . values"):
      outbox.resume(*greeting)

  def test_keeps_what_the_receiver_may_not_have(self):
    outbox = self._make()
    outbox.forget(2)
    outbox.forget(1)  # An older word.
    self.assertEqual((outbox.num_received, outbox.kept_bytes, outbox.num_values), (2, 20, 4))
    self.assertEqual(self._drain(outbox), [3])
    outbox.begin(6)
    self.assertEqual((outbox.num_received, outbox.kept_bytes, outbox.num_values), (0, 0, 0))
    self.assertEqual(self._drain(outbox), [])
    outbox.add("a", [])
    self.assertEqual(outbox.pull(), Frame(6, 0, "a"))

  #    Attempt begun; values that come, as (attempt, number); what is delivered at once, and when
  #    attempt 6 begins; the greeting in between.
  @parameterized.parameters(
      (5, [(5, 0), (5, 1)], [(5, 0), (5, 1)], [], (5, 2)),
      (5, [(4, 7), (5, 0)], [(5, 0)], [], (5, 1)),
      (5, [(5, 0), (6, 0), (6, 1)], [(5, 0)], [(6, 0), (6, 1)], (6, 2)),
      (5, [(6, 0), (7, 0)], [], [], (7, 1)),
      (5, [], [], [], (5, 0)),
  )
  def test_delivers(self, attempt, come, delivered, later, greeting):
    inbox = protocol_lib.Inbox()
    inbox.begin(attempt)
    got = [f for frame in come for f in inbox.accept(Frame(*frame))]
    self.assertEqual([(f.attempt, f.number) for f in got], delivered)
    self.assertEqual((inbox.newest, inbox.count), greeting)
    self.assertEqual([(f.attempt, f.number) for f in inbox.begin(6)], later)

  @parameterized.parameters((5, 0), (5, 2), (6, 1))
  def test_a_missing_value_is_an_error(self, *frame):
    inbox = protocol_lib.Inbox()
    inbox.begin(5)
    inbox.accept(Frame(5, 0))
    with self.assertRaisesRegex(protocol_lib.ProtocolError, "has come, expected"):
      inbox.accept(Frame(*frame))


if __name__ == "__main__":
  absltest.main()
