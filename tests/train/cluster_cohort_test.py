"""A member of a cluster between its client and the log of its transfers."""

import os
import socket

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import frames
from bamboo_jax.cluster import messages
from bamboo_jax.cluster import views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.train.members import cluster_cohort
from tests import layouts

_CHANNEL = channel_lib.Channel("activation", (0, 1), (0,))


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


class ClusterCohortTest(parameterized.TestCase):

  def make(self, **options):
    client, log = Client(**options), transfer_log.TransferLog()
    return client, log, cluster_cohort.ClusterCohort(client, log)

  @parameterized.named_parameters(
      ("who_comes_stops_nothing", None, 1),
      ("a_loss_has_stopped_it", views.View(2, (), ""), 0),
      ("another_loss", views.View(3, (), ""), 1),
  )
  def test_adopt(self, lost, num_posts):
    client, log, cohort = self.make(lost=lost)
    log.begin(_CHANNEL)
    cohort.adopt(2)
    self.assertEqual(cohort.view.number, 2)
    self.assertLen(client.said, num_posts)
    for view, key, value in client.said:
      self.assertEqual((view, key, len(value["channels"])), (2, "begun", 1))
      with self.assertRaises(transfer_log.StoppedError):
        cohort.check()

  def test_settled(self):
    client, log, cohort = self.make()
    log.begin(_CHANNEL)
    cohort.adopt(2)
    cohort.settled(7)
    self.assertEqual(log.begun(), channel_lib.Begun((2, 7), ()))
    log.check()  # Transfers may begin.

  def test_values_travel_as_json(self):
    _, _, cohort = self.make()
    value = holdings_lib.Holdings(activations=frozenset({(0, 1)}))
    self.assertEqual(cohort.gather("key", value), {1: value, 4: value})

  @parameterized.parameters(
      ({}, False, False),
      ({"restart": True}, False, True),
      (
          json_lib.to_plain(
              layouts.make_layout((failover.Roles((0, 1)),), ((0,),))
          ),
          True,
          False,
      ),
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
    self.assertEqual(
        client.said, [messages.Leave(), messages.Assignment({"steps": 1})]
    )


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
      connection.sendall(frames.encode({"has_come": True}))
      self.assertTrue(director.strike(faults_lib.Due(fault, 5)))
      decoder = frames.Decoder()
      self.assertEqual(
          decoder.feed(connection.recv(1 << 16)),
          [
              {"number": 3, "name": "n3", "pid": os.getpid()},
              {"line": fault.line, "owner": 5},
          ],
      )
      connection.shutdown(socket.SHUT_WR)
      with self.assertRaisesRegex(ConnectionError, "Nobody injects"):
        director.strike(faults_lib.Due(fault, 5))
