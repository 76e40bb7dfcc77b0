"""What a worker hears of its agent, and when that stops what it does."""

import signal
import socket
import subprocess
import sys
import threading

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.cluster import client as client_lib, messages
from bamboo_jax.schedule import channel as channel_lib
from tests import members

_VOTES = {0: "x", 1: "y", 2: "z"}


def view(number, *numbers):
  return members.view(number, *numbers, reason=f"view {number}")


class ClientTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.agent, theirs = socket.socketpair()
    self.agent.settimeout(20)
    self.stream, self.heard = self.agent.makefile("rb"), []
    self.addCleanup(self.stream.close)
    self.stopped = []
    self.begun = channel_lib.Begun()
    self.client = client_lib.connect(theirs, number=1, on_lost=self.stop, begun=lambda: self.begun)

  def stop(self, new):
    self.stopped.append(new.number)
    return f"stopped for {new.number}"

  def say(self, message):
    self.agent.sendall(messages.encode(message))

  def show(self, number, *numbers, **rest):
    self.say(messages.NewView(view(number, *numbers), **rest))

  def gathered(self, number, key, values):
    self.say(messages.Gathered(number, key, values))

  def hear(self, kind):
    """Returns the next message of a kind."""
    for _ in range(100):  # Beats come all the time.
      for message in self.heard:
        if isinstance(message, kind):
          self.heard.remove(message)
          return message
      head = self.stream.read(4)
      body = self.stream.read(messages.find_length(head))
      self.heard.append(messages.FROM_WORKER.decode(body))
    self.fail(f"It never says {kind}.")

  def begin(self):
    self.show(3, 0, 1, 2)
    self.hear(messages.Post)
    self.gathered(3, "begun", _VOTES)
    self.client.adopt(self.client.wait_first())

  def test_it_ends_once_it_hears_nothing_more(self):
    # Its agent says what it cannot understand, or is gone.
    for said in (b"\xff" * 100, b""):
      code = (
          "import socket, sys, threading\n"
          "from bamboo_jax.cluster import client\n"
          "agent = socket.socket(fileno=int(sys.argv[1]))\n"
          "from bamboo_jax.schedule import channel\n"
          "client.connect(agent, number=1, on_lost=print, begun=channel.Begun)\n"
          "threading.Event().wait()"
      )
      ours, theirs = socket.socketpair()
      process = subprocess.Popen(
          [sys.executable, "-c", code, str(theirs.fileno())],
          pass_fds=[theirs.fileno()],
          stderr=subprocess.PIPE,
      )
      self.addCleanup(process.communicate)
      self.addCleanup(process.kill)
      theirs.close()
      ours.recv(1)  # It beats.
      ours.sendall(said)
      if not said:
        ours.close()
      self.assertEqual(process.wait(60), 1)
      ours.close()

  def test_a_newcomer_waits_for_the_members_to_choose(self):
    self.show(3, 0, 1)
    self.show(4, 0, 1, 2)
    said = [self.hear(messages.Post) for _ in range(2)]
    self.assertEqual([(s.view, s.key) for s in said], [(3, "begun"), (4, "begun")])
    self.gathered(4, "begun", {0: "a", 1: "b", 2: "c"})
    self.assertEqual(self.client.wait_first(), view(4, 0, 1, 2))
    self.assertEqual(self.stopped, [0, 0])

  def test_a_view_that_is_shown_again_arrives_once(self):
    self.begin()
    arrived_secs = self.client.arrived_secs(3)
    self.show(3, 0, 1, 2, is_due=True)
    self.show(4, 0, 1)
    self.assertEqual(self.client.find_view(4), view(4, 0, 1))
    self.assertEqual(self.client.arrived_secs(3), arrived_secs)
    self.assertEqual(self.stopped, [0, 4])

  def test_values_of_all_members_are_gathered(self):
    self.begin()
    self.gathered(3, "vote 0", _VOTES)
    self.assertEqual(self.client.gather("vote 0", "y"), _VOTES)
    self.assertEqual(self.hear(messages.Post), messages.Post(3, "vote 0", "y"))

  @parameterized.parameters(
      ({}, False),
      ({"waits_for": (2,)}, True),
      ({"ring": (1, 2)}, True),
      ({"ring": (0, 1)}, False),  # Of a ring that hangs the last is blamed.
      ({"ring": (1, 5)}, False),  # That is no member.
  )
  def test_who_waits_for_others_does_not_hang(self, begun, waits):
    self.begin()
    self.begun, before = channel_lib.Begun(**begun), self.client._progress
    self.client.note_progress()
    while (beat := self.hear(messages.Beat)).progress <= before:
      pass  # It was sent before.
    self.assertEqual(beat.is_waiting, waits)

  def check_doubt(self, meanwhile=lambda: None):
    """Fails unless a member gathers votes only once its agent says so."""
    got, seen = [], []

    def answer():
      meanwhile()
      beat = self.hear(messages.Beat)
      while not (beat.doubts and beat.is_waiting):
        beat = self.hear(messages.Beat)  # So nobody takes it for the one that hangs.
      seen.extend([beat.doubts, *got])
      self.show(3, 0, 1, 2, doubts=1)

    thread = threading.Thread(daemon=True, target=answer)
    thread.start()
    got.append(self.client.gather("vote", "y"))
    thread.join()
    self.assertEqual((seen, got), ([1], [_VOTES]))

  def test_one_that_was_stopped_believes_nobody_before_its_agent(self):
    self.begin()
    # As if the process had not run for a moment: five heartbeats are 0.5 s.
    self.client._beat_secs -= 1.0
    self.gathered(3, "vote", _VOTES)
    self.check_doubt()

  def test_what_comes_after_a_long_silence_is_doubted(self):
    self.begin()
    self.client._silence_secs = 0.0
    self.check_doubt(lambda: self.gathered(3, "vote", _VOTES))

  def test_only_the_main_thread_waits_on_purpose(self):
    self.begin()
    self.hear(messages.Beat)
    thread = threading.Thread(daemon=True, target=self.client.wait_interrupt, args=(None,))
    thread.start()
    for _ in range(2):
      self.assertFalse(self.hear(messages.Beat).is_waiting)
    self.show(4, 0, 1)
    thread.join()

  def test_who_is_interrupted_waits_no_longer(self):

    def interrupt(*_):
      raise InterruptedError

    self.begin()
    before = signal.signal(signal.SIGALRM, interrupt)
    self.addCleanup(signal.signal, signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with self.assertRaises(InterruptedError):
      self.client.wait_interrupt(None)
    beats = [self.hear(messages.Beat) for _ in range(10)]  # The first may be from before.
    self.assertFalse(beats[-1].is_waiting)

  def test_a_death_stops_what_is_going_on(self):
    self.begin()

    def answer():
      self.hear(messages.Post)
      self.show(4, 0, 1)

    thread = threading.Thread(daemon=True, target=answer)
    thread.start()
    with self.assertRaisesRegex(base.ViewChangedError, "^view 4$"):
      self.client.gather("vote", "y")
    thread.join()
    self.assertEqual(self.hear(messages.Post), messages.Post(4, "begun", "stopped for 4"))
    self.assertEqual(self.client.wait_interrupt(None), view(4, 0, 1))
    self.client.adopt(view(4, 0, 1))
    self.assertFalse(self.client.is_interrupted)

  def test_a_timeout_begins_once_no_view_is_due(self):
    self.begin()
    self.show(3, 0, 1, 2, is_due=True)
    self.gathered(3, "vote", _VOTES)
    self.client.gather("vote", "y")  # By now it has heard so.
    threading.Timer(0.2, self.show, (4, 0, 1)).start()
    self.assertEqual(self.client.wait_interrupt(0.01), view(4, 0, 1))

  def test_a_run_that_is_to_stop_waits_for_no_newcomer(self):
    self.begin()
    self.say(messages.NewView(members.view(4, 0, 1, 2, stops=True)))
    waits = lambda: self.client.wait_members(4)
    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    thread.join(20)
    self.assertFalse(thread.is_alive())
    self.assertTrue(self.client.newest.stops)

  def test_a_loss_ends_the_wait_for_newcomers(self):
    self.begin()
    self.show(4, 0, 1)
    with self.assertRaises(base.ViewChangedError):
      self.client.wait_members(4)

  def test_a_newcomer_stops_nothing_though_it_dies_before_it_is_adopted(self):
    self.begin()
    self.show(4, 0, 1, 2, 3)
    self.client.wait_members(4)
    self.assertEqual(self.client.newest.number, 4)
    self.assertIsNone(self.client.wait_interrupt(0.0))
    self.assertEqual(self.stopped, [0])
    self.show(5, 0, 1, 2)
    self.client.find_view(5)
    self.assertFalse(self.client.is_interrupted)
    self.client.adopt(self.client.find_view(4))
    self.assertTrue(self.client.is_interrupted)
    self.assertEqual(self.client.wait_interrupt(None).number, 5)
    self.assertEqual(self.stopped, [0, 5])
