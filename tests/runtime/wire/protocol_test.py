"""The protocol of the transport; `tests.explorer.wire` explores it."""

from absl.testing import absltest, parameterized

from bamboo_jax.runtime.wire import frame as frame_lib, protocol as protocol_lib
from tests.explorer.wire import history, mutants, network

Frame, Kind = frame_lib.Frame, frame_lib.Kind


class FrameTest(parameterized.TestCase):

  def test_round_trip_at_any_cut(self):
    frames = [
        Frame(Kind.HELLO, 2, seq=3, ack=4, meta="0>1 run"),
        Frame(Kind.DATA, 5, "a/ü", 6, 7, 8, "m\nn", b"payload", 7),
        Frame(Kind.ACK, 9, ack=10),
    ]
    data = b"".join(frame_lib.encode(f) + f.payload for f in frames)
    for cut in range(len(data)):
      decoder = network.FrameCutter(frame_lib)
      got = [*decoder.feed(data[:cut]), *decoder.feed(data[cut:])]
      self.assertEqual(got, frames)

  @parameterized.named_parameters(
      ("version", b"bjw0", "another version"),
      ("http", b"GET ", "another version"),
      ("kind", frame_lib.MAGIC + b"\x09", "unknown kind of frame 9"),
  )
  def test_rejects(self, start, message):
    header = start.ljust(frame_lib.HEADER.size, b"\0")
    with self.assertRaisesRegex(frame_lib.ProtocolError, message):
      frame_lib.decode_header(header)
    with self.assertRaisesRegex(frame_lib.ProtocolError, "not UTF-8"):
      frame_lib.decode_text(Frame(Kind.ACK), b"\xff")


class ProtocolTest(parameterized.TestCase):

  def _make(self, me=0, **times):
    times = protocol_lib.TimeLimits(**times)
    return protocol_lib.TransportProtocol(me, 1 - me, run="r", times=times)

  def test_failed_dials_are_repeated_at_growing_intervals(self):
    node = self._make(retry_secs=1.0, most_retry_secs=3.0)
    dials, now = [], 0.0
    while len(dials) < 4:
      if node.tick(now):
        dials.append(now)
        node.dial_failed(now)
      now += 0.5
    self.assertEqual(dials, [0.0, 1.0, 3.0, 6.0])

  def test_higher_number_waits_longer(self):
    node = self._make(1, second_secs=2.0)
    self.assertEqual(node.tick(1.9), [])
    self.assertEqual(node.tick(2.0), [protocol_lib.Dial()])

  @parameterized.parameters("1>0 other_run", "2>0 r", "1>2 r", "0>1 r", "1>0 ")
  def test_rejects_other_greetings(self, name):
    node = self._make()
    hello = Frame(Kind.HELLO, seq=9, meta=name)
    (close,) = node.receive("c", hello, 0.0)
    self.assertRegex(close.why, "unexpected greeting")
    self.assertIsNone(node.connection)
    node.tick(0.0)
    node.opened("d", 0.0)
    welcome = Frame(Kind.WELCOME, seq=1, meta=name)
    (close,) = node.receive("d", welcome, 0.0)
    self.assertRegex(close.why, "unexpected greeting")
    self.assertEqual(node.tick(9.0), [protocol_lib.Dial()])

  def test_many_bytes_are_acknowledged_at_once(self):
    node = self._make(ack_bytes=100)
    node.receive("c", Frame(Kind.HELLO, seq=1, meta="1>0 r"), 0.0)
    node.pull("c", 0.0)
    for seq, size, has_more in ((1, 60, False), (2, 60, True)):
      frame = Frame(Kind.DATA, 0, "a", seq - 1, seq, size=size)
      node.receive("c", frame, 0.0)
      self.assertEqual(node.has_more, has_more)
    self.assertEqual(node.pull("c", 0.0).ack, 2)

  def test_the_cost_of_a_value_does_not_grow_with_the_queue(self):
    additions = []

    class Size(int):
      """Records that it is added to something."""

      def __radd__(self, other):
        additions.append(other)
        return int(self) + other

    node = self._make()
    for number in range(100):
      node.send("a", b"", Size(8))
      self.assertEqual(node.kept_bytes, 8 * (number + 1))
    self.assertLessEqual(len(additions), 100)

  def test_a_missing_value_is_an_error(self):
    node = self._make()
    node.receive("c", Frame(Kind.HELLO, seq=1, meta="1>0 r"), 0.0)
    with self.assertRaisesRegex(frame_lib.ProtocolError, "expected 0"):
      node.receive("c", Frame(Kind.DATA, 0, "a", 1, 2), 0.0)


class ExplorationTest(parameterized.TestCase):

  def test_histories(self):
    for seed in range(200):
      history.explore(seed)

  @parameterized.parameters(*sorted({*mutants.MUTANTS} - {*mutants.EQUIVALENT}))
  def test_finds(self, name):
    self.assertIsNotNone(mutants.find(name, num_histories=250))


if __name__ == "__main__":
  absltest.main()
