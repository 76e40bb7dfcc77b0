"""What agents and workers say to each other, and whom they believe."""

import asyncio
import collections
import math

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import msgspec
import numpy as np

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import board as board_lib
from tests import members


def read(kinds, *chunks, most=messages.MAX_BYTES):
  """Returns the messages that come in chunks, up to the end."""

  async def run():
    reader, got = asyncio.StreamReader(), []
    for chunk in chunks:
      reader.feed_data(chunk)
    reader.feed_eof()
    try:
      while True:
        got.append(await messages.read(reader, kinds, most))
    except EOFError:
      return got

  return asyncio.run(run())


class MessagesTest(parameterized.TestCase):

  @parameterized.parameters(
      (messages.FROM_AGENT, messages.Post(1, "vote", {"seen": [1, None, math.inf]})),
      (messages.FROM_AGENT, messages.NewView(members.view(4, 1, leaving=(1,), epoch=3))),
      (messages.FROM_AGENT, messages.Say(suspects=(messages.Suspect("life", "refused", True),))),
      (messages.TO_WORKER, messages.Gathered(1, "vote", {2: "no", 10: None})),  # Keys are numbers.
  )
  def test_what_is_heard_is_what_was_said(self, kinds, message):
    data = 2 * messages.encode(message)
    for size in (1, 5, len(data)):
      chunks = (data[start : start + size] for start in range(0, len(data), size))
      self.assertEqual(read(kinds, *chunks), [message] * 2)

  @parameterized.parameters(math.nan, np.float64(0.1), np.float64(math.nan))
  def test_numbers(self, number):
    (got,) = read(messages.FROM_AGENT, messages.encode(messages.Post(1, "vote", [number])))
    self.assertEqual(repr(got.value), repr([float(number)]))

  def test_values_are_those_of_json(self):
    value = {"steps": collections.Counter(a=1), "nodes": {3}}
    (got,) = read(messages.FROM_WORKER, messages.encode(messages.Say(report=value)))
    self.assertEqual(got.report, {"steps": {"a": 1}, "nodes": [3]})
    with self.assertRaisesRegex(TypeError, "no plain form"):
      messages.encode(messages.Say(report={"a": object()}))

  @parameterized.named_parameters(
      ("of_a_worker", {"kind": "Gathered"}, r"Invalid value 'Gathered' - at `\$.kind`"),
      ("missing", {"kind": "Post", "view": 1, "key": "a"}, "required field `value`"),
      ("unknown", {"kind": "Beat", "x": 3}, "unknown field `x`"),
      ("deep", msgspec.Raw(b"\x91" * 8192 + b"\xc0"), "Expected `object`, got `array`"),
  )
  def test_what_makes_no_sense(self, content, problem):
    with self.assertRaisesRegex(ValueError, problem):
      read(messages.FROM_AGENT, messages.encode(content))

  @parameterized.named_parameters(
      ("http", b"GET / HTTP/1.1\r\n\r\n", "a message of 1195725856 bytes, at most"),
      ("rest", b"\0\0\0\2\x80\x80", "missing|trailing"),
  )
  def test_garbage(self, data, problem):
    with self.assertRaisesRegex(ValueError, problem):
      read(messages.FROM_AGENT, data, most=1 << 16)

  @hypothesis.given(st.binary(max_size=64))
  def test_noise_raises_nothing_else(self, data):
    try:
      read(messages.FROM_AGENT, data, most=1 << 10)
    except ValueError:
      pass


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
    for view in (2, 3, 3):
      self.board.move_to(view)
    self.board.post(0, messages.Post(2, "late", None))
    self.assertEqual(self.board.take(2, {0}), [])
    self.assertEqual(self.board.take(3, {0}), [messages.Gathered(3, "vote", {0: 3})])

  def test_last_posts_are_kept_until_all_are_in_a_newer_view(self):
    """A node that a vote has not reached needs it, even if the sender is in a newer view."""
    vote = messages.Post(1, "vote", None)
    self.board.post_own(0, vote)
    for view in (1, 2, 3):  # A newcomer of view 2 died.
      self.board.move_to(view)
    self.assertEqual(self.board.own(1), [vote])
    for key, want in (("begun", [1, 3]), ("status", [3])):  # The first is posted ahead.
      self.board.post(1, messages.Post(3, key, None))
      self.board.post_own(0, messages.Post(3, key, None))
      self.board.take(3, {0, 1})
      self.assertEqual([*self.board.own_views], want)
