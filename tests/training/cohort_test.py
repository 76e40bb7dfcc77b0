"""Cohorts: of one member, whose nodes die in one process, and of a cluster, between a client
and a transport.
"""

import os
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.base import json as json_lib, logs
from bamboo_jax.cluster import records as records_lib, views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.training import cohort as cohort_lib
from tests import folders, layouts, members


def parse(text):
  return faults_lib.parse_faults(text, source="test")


def strike(cohort, line, owner=None):
  """Lets a fault happen that is written as in a file."""
  (fault,) = parse(line)
  return cohort.strike(faults_lib.Due(fault, owner))


class LocalCohortTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.cohort = cohort_lib.LocalCohort(4)

  def test_nothing_is_said_twice_in_a_view(self):
    self.cohort.gather("vote 1", 0)
    with self.assertRaisesRegex(AssertionError, "vote 1 is said twice"):
      self.cohort.gather("vote 1", 0)

  @parameterized.parameters(
      ("1,0/1,3,kill", 1, {0, 2, 3}),
      ("1,0/1,vote,node", 2, {0, 1, 3}),
      ("1,0/1,0,stop", 3, {0, 1, 2}),
  )
  def test_a_death_is_known_at_once(self, line, owner, left):
    strike(self.cohort, line, owner)
    self.assertEqual(self.cohort.hosted, left)
    for call in (self.cohort.check, lambda: self.cohort.gather("vote 1", 0)):
      with self.assertRaises(base.ViewChangedError):
        call()
    view = self.cohort.wait_change(0.0)
    self.assertEqual((view.number, view.numbers), (2, left))
    self.cohort.adopt(view.number)
    self.cohort.check()
    self.assertFalse(strike(self.cohort, line, owner))  # It happens once.
    self.cohort.check()

  @parameterized.product(
      struck=[("2,,,leader", {1, 2, 3}), ("2,n2,,kill", {0, 1, 3}), ("2,,,all", {4, 5, 6, 7})],
      num_before=[0, 1, 7],
  )
  def test_any_time_is_within_as_many_checks_as_a_step(self, struck, num_before):
    line, left = struck
    for seed in range(10):
      self.cohort = cohort_lib.LocalCohort(4, seed=seed)
      with self.assertRaises(base.ViewChangedError):
        for check in range(16 + num_before + 8):
          if check and check % 8 == 0:
            self.cohort.settled()
          if check == 16 + num_before:
            strike(self.cohort, line)
          self.cohort.check()
      self.assertEqual(self.cohort.hosted, left)

  def test_who_comes_or_leaves_interrupts_nobody(self):
    self.assertFalse(strike(self.cohort, "2,,,join"))
    self.cohort.wait_members(5)
    with self.assertRaisesRegex(base.InfeasibleError, "1 more"):
      self.cohort.wait_members(6, why="1 more")
    strike(self.cohort, "2,n1,,notice")
    self.cohort.check()
    newest = self.cohort.newest
    self.assertEqual((newest.number, newest.leaving), (3, (1,)))
    self.assertEqual(newest.numbers, {0, 1, 2, 3, 4})
    self.cohort.adopt(3)
    self.cohort.say(1, gone="handed over")
    with self.assertRaises(base.ViewChangedError):
      self.cohort.check()

  def test_the_last_death_of_agents_and_workers(self):
    for node in range(3):
      strike(self.cohort, f"2,0/{node},0,node", node)
    with self.assertRaisesRegex(ValueError, "No live node is left"):
      strike(self.cohort, "2,0/3,0,node", 3)


_PATIENCE_SECS = 20.0
_LAYOUT = layouts.lay_out((0, 1))


def make_client(lost=None, facts=None):
  """Returns an agent that knows of view 2, and of a loss if `lost` is not None."""
  client = mock.Mock(adopted=views.View(1, (), ""))
  client.adopt = lambda view: setattr(client, "adopted", view)
  client.find_view = lambda number: views.View(number, (), "")
  client.gather = lambda key, value: {1: value, 4: value}
  client.wait_interrupt.return_value, client.wait_facts.return_value = lost, facts
  client.wait_first.return_value = views.View(5, (), "")
  return client


def make_transport():
  """Returns a transport on which somebody waits for node 3."""
  return mock.Mock(address="here", open_waits=lambda: [3])


class ClusterCohortTest(parameterized.TestCase):

  def make(self, **options):
    client, transport = make_client(**options), make_transport()
    cohort = cohort_lib.ClusterCohort(1, transport, None, None, ring=lambda: (1, 4))
    cohort.client = client
    return client, transport, cohort

  @parameterized.named_parameters(
      ("a_joining_node_stops_nothing", None, 1),
      ("a_loss_has_stopped_it", views.View(2, (), ""), 0),
      ("another_loss", views.View(3, (), ""), 1),
  )
  def test_adopt(self, lost, num_posts):
    client, transport, cohort = self.make(lost=lost)
    cohort.adopt(2)
    self.assertEqual(cohort.view.number, 2)
    transport.begin.assert_called_once_with(2 << 32)
    want = {"address": "here", "waits_for": [3], "ring": [1, 4]}
    self.assertEqual(client.post.mock_calls, [mock.call(2, "begun", want)] * num_posts)

  def test_attempts(self):
    _, transport, cohort = self.make()
    cohort.adopt(2)
    cohort.settled()
    cohort.settled()
    cohort.enter()
    attempts = [call.args[0] for call in transport.begin.mock_calls]
    self.assertEqual(attempts, [*(n + (2 << 32) for n in range(3)), 5 << 32])

  def test_a_loss_interrupts_and_drops_what_is_kept_for_the_dead(self):
    _, transport, cohort = self.make()
    said = cohort._lose(members.view(9, 0, 1, reason="n3 is gone"))
    transport.interrupt.assert_called_once_with(mock.ANY, until=9 << 32)
    self.assertRegex(transport.interrupt.call_args.args[0], "view 9")
    self.assertEqual(said["address"], "here")
    cohort._lose(views.EMPTY)  # Before the first view nobody is dead.
    transport.keep_only.assert_called_once()
    self.assertCountEqual(transport.keep_only.call_args.args[0], [0, 1])

  @parameterized.parameters(
      ({}, cohort_lib.Start()),
      ({"restart": True}, cohort_lib.Start(is_restart=True)),
      (
          {**json_lib.to_plain(_LAYOUT), "members": [0, 1, 4]},  # One is a spare.
          cohort_lib.Start(_LAYOUT, frozenset({0, 1, 4})),
      ),
  )
  def test_start(self, facts, want):
    _, _, cohort = self.make(facts=facts)
    self.assertEqual(cohort.wait_start(), want)

  def test_collect_addresses(self):
    client, transport, cohort = self.make()
    client.adopted = members.view(8, 0, 1, 3)
    said = {0: channel_lib.Begun(address="a"), 1: channel_lib.Begun(waits_for=(7, 3))}
    client.collect.return_value = {n: json_lib.to_plain(begun) for n, begun in said.items()}
    cohort.collect_addresses()
    transport.set_addresses.assert_called_once_with({0: "a", 1: ""})
    transport.connect.assert_called_once_with([0, 3])

  def test_the_transport_notes_progress_once_there_is_a_client(self):
    client, transport, cohort = self.make()
    with mock.patch.object(cohort_lib.client_lib, "connect", return_value=client) as connect:
      cohort.connect(None, mock.Mock())
    self.assertEqual(connect.call_args.kwargs["begun"]().address, "here")
    self.assertIs(transport.note, client.note_progress)


class StrikeTest(folders.FolderCase):
  """Signals are recorded; records are real."""

  def setUp(self):
    super().setUp()
    self.records = records_lib.Records(self.folder, b"key")
    self.told = jsonl.NodesReader(self.folder)
    self.signals = []
    note = lambda pid, number: self.signals.append((pid == os.getpid(), number.name))
    self.enterContext(mock.patch.object(os, "kill", note))
    self.enterContext(mock.patch.dict(logs._names, {n: f"n{n}" for n in range(4)}))

  def make(self, number, run=0):
    """Returns the cohort of one of four nodes, in zones a and b."""
    client = make_client()
    member = lambda n: views.Member(n, f"n{n}", "ab"[n % 2], f"life{n}", "h", 7)
    client.adopted = views.View(run + 3, tuple(map(member, range(4))), "", run=run)
    cohort = cohort_lib.ClusterCohort(
        number, make_transport(), self.records, self.folder, faults_run=0
    )
    cohort.client = client
    return cohort

  def strike(self, line, owner=None, numbers=range(4)):
    """Returns what each node says to a fault, and the nodes that it has hit."""
    (fault,) = parse(line)
    at_once = lambda secs, call, arguments: mock.Mock(start=lambda: call(*arguments))
    with mock.patch.object(cohort_lib.threading, "Timer", at_once):
      said = [self.make(n).strike(faults_lib.Due(fault, owner)) for n in numbers]
    return said, [(one["name"], one["kind"]) for one in self.told.read()]

  @parameterized.parameters(
      ("3,0/0,6,kill", 2, ["n2"], ["KILL"]),
      ("3,0/0,6,stop", 1, ["n1"], ["STOP"]),
      ("3,0/0,vote,node", 1, ["n1"], ["agent KILL", "KILL"]),
      ("3,0/0,,notice", 1, ["n1"], ["agent TERM"]),
      ("3,0/0,,slow:4", 1, ["n1"], []),
      ("3,n3,,kill", None, ["n3"], ["KILL"]),
      ("3,,,leader", None, ["n0"], ["agent KILL", "KILL"]),
      ("3,b,,zone", None, ["n1", "n3"], ["agent KILL", "KILL"] * 2),
      ("3,,,all", None, ["n0", "n1", "n2", "n3"], ["KILL"] * 4),
      ("3,1/0,,kill", None, [], []),
  )
  def test_victims_strike_themselves(self, line, owner, names, signals):
    said, told = self.strike(line, owner)
    (fault,) = parse(line)
    self.assertEqual((said, told), ([False] * 4, [(name, fault.kind) for name in names]))
    found = ["agent " * (not own) + name.removeprefix("SIG") for own, name in self.signals]
    self.assertEqual(found, signals)

  def test_a_fault_happens_once(self):
    for owner, names in ((1, ["n1"]), (2, [])):  # The step is repeated with another owner.
      _, told = self.strike("3,0/0,,kill", owner)
      self.assertEqual([name for name, _ in told], names)
    one, faults = self.make(1), parse("\n4,0/1,3,notice")
    for _ in range(2):  # The node lives on, and repeats the step.
      one.strike(faults_lib.Due(faults[0], 1))
    self.assertEqual([line["line"] for line in self.told.read()], [2])

  def test_any_time_is_soon_though_the_node_has_taken_long_to_start(self):
    (fault,) = parse("3,0/0,,kill")
    clock = self.enterContext(mock.patch.object(cohort_lib.time, "perf_counter"))
    timer = self.enterContext(mock.patch.object(cohort_lib.threading, "Timer"))
    clock.return_value = 0.0
    one = self.make(1)
    clock.return_value = 100.0
    one.settled()
    one.strike(faults_lib.Due(fault, 1))
    self.assertLess(timer.call_args.args[0], 1.0)

  def test_a_fault_happens_though_it_cannot_be_noted(self):
    nothing = mock.patch.object(jsonl, "note_node", side_effect=OSError("full"))
    with nothing, self.assertLogs("absl", "WARNING"):
      self.strike("3,0/0,6,kill", 2)
    self.assertLen(self.signals, 1)

  def test_joins_call_nodes_until_as_many_have_drawn_a_ticket(self):
    self.records.make("tickets/0/0", "n")  # Of a first node.
    faults = parse("3,,,join\n3,,,join")
    cohorts = [self.make(0), self.make(2)]
    strike = lambda: [[c.strike(faults_lib.Due(f, None)) for f in faults] for c in cohorts]
    self.assertEqual(strike(), [[False] * 2] * 2)
    told = [(one["name"], one["kind"], one["line"]) for one in self.told.read()]
    self.assertEqual(told, [(name, "join", line) for name in ("n0", "n2") for line in (1, 2)])
    for number, come in ((1, [True, False]), (2, [True, True])):
      self.records.make(f"tickets/0/{number}", "n")
      self.assertEqual(strike(), [come] * 2)
    self.assertEmpty([*self.told.read()])
    self.assertEqual(self.strike("3,,,join", numbers=[1]), ([True], []))  # It has come.

  def test_no_fault_happens_again_in_another_run_of_one_command(self):
    faults = parse("3,0/0,6,kill\n5,,,join")
    for fault in faults:
      self.make(1).strike(faults_lib.Due(fault, 1))
    self.assertLen([*self.told.read()], 2)
    later = self.make(1, run=9)
    self.assertEqual([later.strike(faults_lib.Due(f, 1)) for f in faults], [False, True])
    self.assertEmpty([*self.told.read()])
