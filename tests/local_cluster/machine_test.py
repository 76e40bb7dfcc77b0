"""The agents of a cluster, and the folder that it takes."""

import os
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.cluster import children, judge, records as records_lib, views
from bamboo_jax.local_cluster import machine
from tests import folders, members


class MachineTest(folders.FolderCase):

  def test_each_run_of_a_folder_begins_in_a_view_of_its_own(self):
    runs = []
    for _ in range(3):
      one = machine.LocalCluster(self.folder, str(self.folder))
      one.take_folder(9.0)
      view = judge.newest_view(one.records)
      one.records.make(f"run/{view.run}", judge.describe_run("life", {}))
      runs.append(view.run)
    self.assertIn(f"(process {os.getpid()})", view.reason)  # No other command has this view.
    self.assertEqual(runs, [0, 1, 2])
    self.assertEqual((self.folder / "secret").stat().st_mode & 0o077, 0)

  @parameterized.parameters(
      # Without the link neighbours are in different zones, which may be regions.
      (None, {("us", "eu")}),
      (50.0, {("us",), ("eu",)}),
  )
  def test_first_nodes_of_a_pipeline_are_in_one_region(self, latency_ms, want):
    config = config_lib.Config().changed(
        {
            "pipeline.num_stages": 2,
            "redundancy.mode": "lazy",
            "redundancy.spares": 1,
            "plan.region_latency_ms": latency_ms,
            "plan.region_mbits": latency_ms and 200.0,
        }
    )
    zones = dict(enumerate(("us/a", "eu/a", "us/a", "eu/a", "us/a")))
    numbers, _ = machine.place_nodes(config, zones)
    region_at = {number: zones[node][:2] for node, number in numbers.items()}
    pairs = {tuple(dict.fromkeys((region_at[n], region_at[n + 1]))) for n in (0, 2)}
    self.assertEqual(pairs, want)

  @parameterized.named_parameters(
      ("killed", -9, "", "Node n1: its agent was killed by SIGKILL."),
      (
          "it_has_said_why",
          2,
          "info: View 2\nerror: Node n1: its worker was stopped.\n",
          "Node n1: its worker was stopped.",
      ),
      ("it_ended_without_a_word", 3, "", "its agent ended with exit status 3."),
      ("it_ended_well", 0, "", ""),
  )
  def test_what_is_said_of_the_end_of_a_node(self, code, log, why):
    one = self.start([None, code, None])
    path = self.folder / "logs" / "n1.agent.log"
    path.write_text(log)
    found = one.tend()
    self.assertEqual(one.has_failed("n1"), bool(why))
    if not why:
      self.assertEqual(found, {})
      return
    self.assertEndsWith(found["n1"], f"{why} 2 of 3 nodes are left; agent: pid 7, log {path}")
    self.assertEqual(one.tend(), {})
    self.assertEqual(one.num_failed, 1)
    self.assertEqual(one.mistake, why if code == 2 else "")

  def start(self, codes):
    """Returns a cluster of agents that have ended with these codes, or run, in zones a, b, a."""
    one = machine.LocalCluster(self.folder, str(self.folder))
    processes = iter([mock.Mock(returncode=c, pid=7, poll=lambda code=c: code) for c in codes])
    with mock.patch.object(children, "start", lambda *_, **__: next(processes)):
      for number in range(len(codes)):
        one.start_agent(f"n{number}", "aba"[number], arguments=[])
    return one

  @parameterized.parameters(
      (["4", "6"], [None, None, None, None], "4646"),
      (["4", "6"], [None, -9, None, None], "4664"),  # The second has died.
      ([], [None], [None]),
  )
  def test_a_node_gets_the_gpu_with_the_fewest_nodes(self, gpus, codes, want):
    one, found = machine.LocalCluster(self.folder, str(self.folder), gpus), []
    self.enter_context(mock.patch.dict(os.environ))
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    for number, code in enumerate(codes):
      process = mock.Mock(poll=lambda code=code: code)
      with mock.patch.object(children, "start", return_value=process) as start:
        one.start_agent(f"n{number}", "a", arguments=[])
      found.append(start.call_args.kwargs["env"].get("CUDA_VISIBLE_DEVICES"))
    self.assertEqual(found, [*want])

  def test_the_nodes_of_a_zone_that_run(self):
    one = self.start([-9, None, None])
    self.assertEqual([*map(one.find_running, "abc")], [["n2"], ["n1"], []])

  @parameterized.named_parameters(
      ("one_lives", (0, 1), True),
      ("only_one_that_joins", (1,), False),
      ("nobody_has_begun", (), False),
  )
  def test_whether_members_live(self, numbers, want):
    one = self.start([None, 2, None])
    one.records, one.run = records_lib.Records(self.folder, b"key"), views.EMPTY.run
    if numbers:
      judge.make_view(one.records, views.EMPTY, members.view(1, *numbers))
    self.assertEqual(one.has_live_members(), want)
    found = [one.find_number(f"n{n}") for n in range(2)]
    self.assertEqual(found, [n if n in numbers else None for n in range(2)])
    one.records.find = mock.Mock(side_effect=OSError("away"))
    self.assertTrue(one.has_live_members())
    self.assertIsNone(one.find_number("n1"))
