"""What agents and workers say to each other, and whom they believe."""

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.cluster import frames, messages, views
from bamboo_jax.cluster.agent import board as board_lib

_JSON = st.dictionaries(st.text(), st.integers() | st.text() | st.none())


class FramesTest(parameterized.TestCase):

  @hypothesis.given(st.lists(_JSON), st.integers(1, 7))
  def test_any_cut_gives_the_messages(self, messages, size):
    data = b"".join(map(frames.encode, messages))
    decoder, got = frames.Decoder(), []
    for start in range(0, len(data), size):
      got += decoder.feed(data[start : start + size])
    self.assertEqual(got, messages)

  @parameterized.named_parameters(
      ("http", b"GET / HTTP/1.1\r\n\r\n", "bytes, at most"),
      ("zeros", b"\0\0\0\2\0\0", "not JSON"),
      ("list", b"\0\0\0\2[]", "not a JSON object"),
      ("deep", b"\0\0\x20\0" + b"[" * 8192, "not JSON"),
  )
  def test_garbage(self, data, message):
    with self.assertRaisesRegex(frames.BadFrameError, message):
      frames.Decoder(1 << 16).feed(data)

  @hypothesis.given(st.binary(max_size=64))
  def test_noise_raises_nothing_else(self, data):
    try:
      frames.Decoder(1 << 10).feed(data)
    except frames.BadFrameError:
      pass


class MessagesTest(parameterized.TestCase):

  @parameterized.parameters(
      messages.Beat(),
      messages.Post(1, "vote", {"seen": [1, None]}),
      messages.NewView(
          views.View(
              4, (views.Member(1, "n1", "a", "life", "h", 7),), "test", leaving=(1,), epoch=3
          )
      ),
      messages.Gone("killed", silent_secs=0.25),
      messages.Suspects(3, (messages.Suspect("life", "refused", True),)),
  )
  def test_what_is_heard_is_what_was_said(self, message):
    (content,) = frames.Decoder().feed(messages.encode(message))
    self.assertEqual(messages.parse(content, messages.FROM_AGENT), message)

  @parameterized.parameters(
      messages.Gathered(1, "vote", {2: "no", 10: None}), messages.NewView(views.EMPTY, {10: 0.5})
  )
  def test_keys_are_numbers(self, message):
    (content,) = frames.Decoder().feed(messages.encode(message))
    self.assertEqual(messages.parse(content, messages.TO_WORKER), message)

  @parameterized.parameters(
      ({}, "kind None"),
      ({"kind": "Adopt", "view": 1}, "kind 'Adopt'"),  # Of a worker.
      ({"kind": "Gone"}, "'reason' is missing"),
      ({"kind": "Gone", "reason": 3}, "reason must be str"),
      ({"kind": "NewView", "view": {"number": 1}}, "View"),
  )
  def test_what_makes_no_sense(self, content, problem):
    with self.assertRaisesRegex(frames.BadFrameError, problem):
      messages.parse(content, messages.FROM_AGENT)


class BoardTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.board = board_lib.Board()

  def test_values_are_taken_once_all_are_there(self):
    post = lambda node, value: self.board.post(node, messages.Post(1, "vote", value))
    post(4, "yes")
    self.assertEqual(self.board.take(1, {2, 4}), [])
    post(7, "a stranger")
    post(2, "no")
    self.assertEqual(
        self.board.take(1, {2, 4}), [messages.Gathered(1, "vote", {2: "no", 4: "yes"})]
    )
    post(2, "again")
    self.assertEqual(self.board.take(1, {2, 4}), [])

  def test_older_views_are_dropped_and_newer_ones_kept(self):
    for view in (2, 3):
      self.board.post(0, messages.Post(view, "vote", view))
    self.assertEqual(self.board.take(3, set()), [])  # Not known yet.
    self.board.move_to(3)
    self.board.post(0, messages.Post(2, "late", None))
    self.assertEqual(self.board.take(2, {0}), [])
    self.assertEqual(self.board.take(3, {0}), [messages.Gathered(3, "vote", {0: 3})])
