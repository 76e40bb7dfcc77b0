"""A member of a cluster between its client and its transport."""

import os
import socket
from unittest import mock

from absl.testing import absltest, parameterized
import numpy as np

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import frames, messages, views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime.wire import endpoints, transport as transport_lib
from bamboo_jax.schedule import failover, holdings as holdings_lib
from bamboo_jax.training import run
from bamboo_jax.training.members import cluster_cohort
from tests import layouts, tiny

_PATIENCE_SECS = 20.0


class Client:
  """An agent that knows of view 2, and of a loss if `lost` is not None."""

  number = 1

  def __init__(self, lost=None, facts=None):
    self.adopted = views.View(1, (), "")
    self.said = []
    self._lost = lost
    self._facts = facts

  def wait_interrupt(self, timeout_secs):
    return self._lost

  def find_view(self, number):
    return views.View(number, (), "")

  def adopt(self, view):
    self.adopted = view

  def post(self, view, key, value):
    self.said.append((view, key, value))

  def send(self, message):
    self.said.append(message)

  def gather(self, key, value):
    return {1: value, 4: value}

  def wait_facts(self):
    return self._facts

  def wait_first(self):
    return views.View(5, (), "")


class LateClient:
  """Is made after another node has sent something to the transport."""

  def __init__(self, agent, *, begun, **unused):
    self.num_notes = 0
    self.transport = begun.__self__.transport
    other = transport_lib.Transport(1, run="r", endpoint=endpoints.UnixEndpoint())
    other.set_addresses({0: begun().address})
    for transport in (other, self.transport):
      transport.begin(1)
    other.send(0, "a", [np.ones(3)])
    self.was_heard = self.transport.wait(1, "a", _PATIENCE_SECS)
    other.close()

  def note_progress(self):
    self.num_notes += 1


class Transport:
  """Records what is asked of it; somebody waits for node 3."""

  address = "here"

  def __init__(self):
    self.attempts, self.kept, self.interrupted = [], [], None

  def begin(self, attempt):
    self.attempts.append(attempt)

  def interrupt(self, why, *, until):
    self.interrupted, self.until = why, until

  def keep_only(self, nodes, why):
    self.kept.append({*nodes})

  def check(self):
    pass

  def open_waits(self):
    return [transport_lib.OpenWait(3, "a", 0.0)]


class ClusterCohortTest(parameterized.TestCase):

  def make(self, **options):
    client, transport = Client(**options), Transport()
    exits = cluster_cohort.Exits(transport, lambda: ((1, 4), 2))
    return client, transport, cluster_cohort.ClusterCohort(client, exits)

  @parameterized.named_parameters(
      ("a_joining_node_stops_nothing", None, 1),
      ("a_loss_has_stopped_it", views.View(2, (), ""), 0),
      ("another_loss", views.View(3, (), ""), 1),
  )
  def test_adopt(self, lost, num_posts):
    client, transport, cohort = self.make(lost=lost)
    cohort.adopt(2)
    self.assertEqual(cohort.view.number, 2)
    self.assertEqual(transport.attempts, [2 << 32])
    self.assertLen(client.said, num_posts)
    for view, key, value in client.said:
      self.assertEqual((view, key), (2, "begun"))
      want = {"address": "here", "waits_for": [3], "ring": [1, 4], "num_segments": 2}
      self.assertEqual(value, want)

  def test_settled(self):
    _, transport, cohort = self.make()
    cohort.adopt(2)
    cohort.settled(7)
    cohort.settled(8)
    self.assertEqual(transport.attempts, [n + (2 << 32) for n in range(3)])

  def test_entering_begins_an_attempt(self):
    _, transport, cohort = self.make()
    cohort.enter()
    self.assertEqual(transport.attempts, [5 << 32])

  def test_a_loss_interrupts_and_drops_what_is_kept_for_the_dead(self):
    transport = Transport()
    exits = cluster_cohort.Exits(transport)
    members = tuple(views.Member(i, f"n{i}", "a", f"life{i}", "h", 7) for i in (0, 1))
    said = exits.lose(views.View(9, members, "n3 is gone"))
    self.assertEqual(transport.kept, [{0, 1}])
    self.assertRegex(transport.interrupted, "view 9")
    self.assertEqual(transport.until, 9 << 32)
    self.assertEqual(said["address"], "here")
    exits.lose(views.EMPTY)  # Before the first view nobody is dead.
    self.assertLen(transport.kept, 1)

  def test_values_travel_as_json(self):
    _, _, cohort = self.make()
    value = holdings_lib.Holdings(activations=frozenset({(0, 1)}))
    self.assertEqual(cohort.gather("key", value), {1: value, 4: value})

  @parameterized.parameters(
      ({}, False, False),
      ({"restart": True}, False, True),
      (json_lib.to_plain(layouts.make_layout((failover.Roles((0, 1)),), ((0,),))), True, False),
  )
  def test_start(self, facts, has_layout, is_restart):
    _, _, cohort = self.make(facts=facts)
    start = cohort.wait_start()
    self.assertEqual(start.layout is not None, has_layout)
    self.assertEqual(start.is_restart, is_restart)

  def test_newcomers_know_of_spares(self):
    layout = layouts.make_layout((failover.Roles((0, 1)),), ((0,),))
    facts = {**json_lib.to_plain(layout), "members": [0, 1, 4]}
    _, _, cohort = self.make(facts=facts)
    start = cohort.wait_start()
    self.assertEqual((start.layout, start.members), (layout, {0, 1, 4}))

  def test_reports(self):
    client, _, cohort = self.make()
    cohort.report("leave", node=1)
    cohort.report("facts", facts={"steps": 1})
    self.assertEqual(client.said, [messages.Leave(), messages.Assignment({"steps": 1})])


class RemoteDirectorTest(absltest.TestCase):

  def test_says_who_it_is_and_asks_for_each_fault(self):
    with socket.socket(socket.AF_UNIX) as server:
      server.bind("")
      server.listen()
      address = server.getsockname().decode().removeprefix("\0")
      director = cluster_cohort.RemoteDirector(address, number=3, name="n3")
      connection, _ = server.accept()
    (fault,) = faults_lib.parse_faults("2,0/1,vote,kill", source="test")
    with connection, director._socket:
      connection.sendall(frames.encode({"has_joined": True}))
      self.assertTrue(director.strike(faults_lib.Due(fault, 5)))
      decoder = frames.Decoder()
      self.assertEqual(
          decoder.feed(connection.recv(1 << 16)),
          [{"number": 3, "name": "n3", "pid": os.getpid()}, {"line": fault.line, "owner": 5}],
      )
      self.assertFalse(director.is_asked_to_stop())
      for _ in range(2):  # Before the answer, and after it.
        connection.sendall(frames.encode({"stop": True}) + frames.encode({"has_joined": False}))
        self.assertFalse(director.strike(faults_lib.Due(fault, 5)))
        self.assertTrue(director.is_asked_to_stop())
      connection.sendall(frames.encode({"has_joined": True}))
      self.assertTrue(director.strike(faults_lib.Due(fault, 5)))
      connection.shutdown(socket.SHUT_WR)
      with self.assertRaisesRegex(ConnectionError, "that injects faults has ended"):
        director.strike(faults_lib.Due(fault, 5))


class JoinTest(absltest.TestCase):

  def test_a_node_is_heard_before_there_is_a_client(self):
    for module, name in (
        (run.waits, "tell_on_signal"),
        (run, "use_devices"),
        (run.devices_lib, "place_nodes"),
    ):
      self.enterContext(mock.patch.object(module, name))
    self.enterContext(mock.patch.object(run.client_lib, "Client", LateClient))
    client = run._join(
        run.accept.accept(tiny.get_config()),
        None,
        number=0,
        stamp="r",
        host="127.0.0.1",
        identity=None,
    ).client
    self.addCleanup(client.transport.close)
    self.assertTrue(client.was_heard)
    client.transport.note()
    self.assertEqual(client.num_notes, 1)
