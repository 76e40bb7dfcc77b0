"""Agents that are started one by one, as on several machines.

Loopback addresses stand for machines. Takes most of half a minute, as workers
import JAX.
"""

import socket
import time

from absl.testing import absltest

from tests import notice_server
from tests.launch import commands


@commands.needs_etcd
class AgentsTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 30,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "redundancy.spares": 1,
  }
  HELD_FROM = 2

  def setUp(self):
    super().setUp()
    self.cloud = notice_server.NoticeServer()
    self.addCleanup(self.cloud.close)
    self.etcd = commands.start_etcd(self.folder / "etcd", self.addCleanup)

  def start_agent(self, number, *arguments, host=None):
    return self.start(
        "agent",
        f"--etcd=http://{self.etcd.endpoint}",
        f"--name=n{number}",
        f"--zone=z{number}",
        f"--host={host or f'127.0.0.{number + 1}'}",
        *arguments,
    )

  def has_stepped(self):
    log = self.folder / "run" / "metrics.jsonl"
    return log.exists() and b'"loss"' in log.read_bytes()

  def test_one_of_three_machines_is_preempted(self):
    gcp = ("--notice=gcp", f"--notice_url={self.cloud.url}")
    agents = [self.start_agent(0), self.start_agent(1, *gcp)]
    agents.append(self.start_agent(2))
    while not self.has_stepped() and all(a.poll() is None for a in agents):
      time.sleep(0.02)
    self.cloud.announced = {"gcp"}
    self.finish(agents[1])
    self.release()
    said = self.finish(*agents[::2])
    self.assertEqual(self.summary()["steps"], 30)
    for text in said:
      self.assertRegex(text, r"n2 joined \(zone z2\); \d of 3 nodes are here")
      self.assertIn("n1 left: handed over after a notice", text)
      self.assertRegex(text, r"(?s)step=1 loss=.*step=30 .*state_sha256=\w{64}")
      self.assertNotIn("etcd", text)
    programs = (self.folder / "run" / "programs").glob("*.xla")
    self.assertNotEmpty([*programs])  # What one compiles all machines have.
    shown = commands.run("-m", "launch.status", f"--etcd={self.etcd.endpoint}").stdout
    self.assertIn("n1 left: handed over after a notice", shown)
    self.assertIn("step=30 num_steps=30", shown)

  @absltest.skipUnless(socket.has_dualstack_ipv6(), "there is no IPv6")
  def test_machines_of_ipv6(self):
    few = ("--nodes=2", "--config.num_steps=5", commands.PROGRAM_CACHE)
    self.finish(*(self.start_agent(n, *few, host="::1") for n in range(2)))
    self.assertEqual(self.summary()["steps"], 5)

  def test_a_folder_in_which_another_process_trains(self):
    forever = "--config.num_steps=100000"
    train = self.start("train", forever)
    while not self.has_stepped() and train.poll() is None:
      time.sleep(0.02)
    few_secs = "--config.cluster.start_silence_secs=2"
    agent = self.start_agent(0, few_secs, commands.PROGRAM_CACHE)
    said, _ = agent.communicate(timeout=60)
    self.assertEqual(agent.returncode, 2, msg=said)
    self.assertIn("bamboo train is running in ", said)
    self.assertIsNone(train.poll())
    train.kill()
    train.wait()
    begin_secs = time.monotonic()
    self.finish(self.start("train", forever, "--stop_at=1"))
    self.assertLess(time.monotonic() - begin_secs, 60)  # Most to import JAX.
