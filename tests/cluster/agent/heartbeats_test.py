from bamboo_jax import config
from bamboo_jax.cluster import messages, stalls as stalls_lib
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.schedule import channel as channel_lib
from tests import members
from tests.cluster.agent import given

_NUM_NODES = 6
_LIMITS = config.ClusterSection(num_watchers=2)
_BEAT = messages.Beat(view=1)
_ASKS = messages.Beat(view=1, asks=True)


class LiveCase(given.CoreCase):

  def live(self, until, *, numbers=(4, 5), since=0.0):
    """Lets some give signs of life; returns what is sent, to whom."""
    sent = []
    for tenth in range(round(10 * since), round(10 * until)):
      now = 0.1 + tenth / 10
      for number in numbers:
        self.on(given.said(number, messages.Beat(view=1)), now)
      sent += given.find_sent(self.on(events_lib.Ticked(), now))
    return sent


class HeartbeatsTest(LiveCase):
  """Node 0 of six; nodes 1 and 2 watch it, and it watches nodes 5 and 4."""

  def setUp(self):
    super().setUp()
    self.begin(numbers=range(_NUM_NODES), limits=_LIMITS)
    self.live(0.1)

  def test_only_watchers_hear(self):
    sent = self.live(20.0, since=0.1)
    self.assertEqual({*sent}, {(_BEAT, "life 1"), (_BEAT, "life 2")})
    self.assertBetween(len(sent), 100, 140)  # One each in 0.3 s.

  def test_newcomers_hear(self):
    self.on(events_lib.PeerCame(members.member(9)), 0.2)
    sent = self.live(1.0, since=0.2)
    self.assertIn((_BEAT, "life 9"), sent)

  def test_all_hear_of_a_new_view(self):
    view = members.view(2, *range(_NUM_NODES))
    self.on(given.said(1, messages.NewView(view)), 0.2)
    sent = self.live(0.3, since=0.2)
    self.assertIn((messages.Beat(view=2), None), sent)

  def test_who_suspects_asks_all(self):
    sent = self.live(4.0, numbers=(5,), since=0.1)
    self.assertIn((_ASKS, None), sent)
    kinds = [type(message) for message, _ in sent]
    self.assertIn(messages.Suspects, kinds)
    # Nobody answers; it takes them all for silent later than node 4.
    whom = lambda: {s.incarnation for s in self.state.suspects.suspects}
    self.assertEqual(whom(), {"life 4"})
    self.live(7.0, numbers=(5,), since=4.0)
    self.assertEqual(whom(), {f"life {i}" for i in (1, 2, 3, 4)})

  def test_suspicion_of_another(self):
    self.assertEqual([m for m, _ in self.sent_at(0.2, given.silent(5, 3))], [_ASKS])
    sent = self.live(1.0, numbers=(1, 2, 3, 4, 5), since=0.2)
    self.assertEqual({*sent}, {(_ASKS, None)})
    self.on(given.silent(5, count=2), 1.1)  # It is taken back.
    sent = self.live(9.0, since=1.1)
    self.assertEqual(sent[0], (_BEAT, None))
    self.assertNotIn((_ASKS, None), sent)
    self.assertEmpty(self.state.suspects.suspects)

  def test_who_is_asked_answers(self):
    self.assertEqual(self.sent_at(0.2, given.said(3, _ASKS)), [(_BEAT, "life 3")])
    self.assertEmpty(self.sent_at(0.2, given.said(3, _BEAT)))
    self.on(given.silent(5, 3), 0.3)  # It asks all itself now.
    self.assertEmpty(self.sent_at(0.4, given.said(3, _ASKS)))

  def test_gaps_of_those_who_are_watched_count(self):
    """A crowded machine: signs of life come in seconds, those of all."""
    for now in (2.0, 4.0, 6.0):
      for tenth in range(20):
        self.on(events_lib.Ticked(), now - 2.0 + tenth / 10)
      for number in (4, 5):
        self.on(given.said(number, _BEAT), now)
    self.on(given.silent(5, 3), 6.0)
    for tenth in range(1, 75):  # Four gaps of two seconds.
      self.on(events_lib.Ticked(), 6.0 + tenth / 10)
    self.assertEmpty(self.state.suspects.suspects)

  def test_all_hear_of_a_stall_again_and_again(self):
    stall = stalls_lib.Stall(True, 1, channel_lib.Begun(), ())
    beat = messages.WorkerBeat(progress=1, is_waiting=True, stall=stall)
    self.on(events_lib.WorkerSaid(beat), 0.2)
    sent = self.live(1.0, since=0.2)
    self.assertEqual({*sent}, {(messages.Beat(stall, 1), None)})
    self.assertGreater(len(sent), 2)

  def test_what_a_connection_missed(self):
    sent = self.sent_at(0.2, events_lib.PeerReached("life 3"))
    self.assertIn((_BEAT, "life 3"), sent)

  def sent_at(self, now, event):
    return given.find_sent(self.on(event, now))


class FewNodesTest(given.CoreCase):

  def test_all_watch_all(self):
    self.begin(numbers=range(3), limits=_LIMITS)
    actions = self.on(events_lib.Ticked(), 0.1)
    self.assertIn(events_lib.Send(_BEAT), actions)
    actions = self.on(given.silent(1, 2), 0.2)
    self.assertNotIn(events_lib.Send(_ASKS), actions)
