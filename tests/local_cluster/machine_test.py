"""A folder is taken over only from a run that is over."""

import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.cluster import children
from bamboo_jax.cluster.store import endpoint as endpoint_lib, fence as fence_lib
from bamboo_jax.local_cluster import machine
from tests import folders, members


class MachineTest(folders.FolderCase):

  @parameterized.parameters(True, False)
  def test_members_that_live_keep_their_folder(self, live):
    fence = fence_lib.Fence(self.folder)
    fence.create("stamp")
    theirs = endpoint_lib.RunAddress("https://h:1", "run")
    endpoint_lib.write(self.folder, theirs)
    (self.folder / "secret").write_text("theirs")
    before = folders.read_all(self.folder)
    one = machine.LocalCluster(self.folder, etcd=None, run="run")
    etcd = mock.Mock(endpoint="https://h:2")
    self.enterContext(
        mock.patch.multiple(
            machine.private_etcd,
            find_binary=mock.DEFAULT,
            PrivateEtcd=lambda *unused_args, **unused_flags: etcd,
        )
    )

    def sleep(secs):
      self.assertBetween(secs, 0.0, 4.0)
      if live:
        fence.beat("stamp")

    with mock.patch.object(time, "sleep", sleep):
      if live:
        with self.assertRaisesRegex(ValueError, "Members of a run are alive in "):
          one.take_folder()
        self.assertEqual(folders.read_all(self.folder), before)
        return
      one.take_folder()
    self.assertIsNone(fence.read().claim)
    self.assertEqual(endpoint_lib.read(self.folder).etcd, "https://h:2")
    self.assertNotEqual((self.folder / "secret").read_text(), "theirs")

  @parameterized.named_parameters(
      ("killed", -9, "", "Node n1: its agent was killed by SIGKILL."),
      (
          "it_has_said_why",
          *(2, "info: View 2\nerror: Node n1: its worker was stopped.\n"),
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
    if not why:
      self.assertEqual(found, {})
      return
    self.assertEndsWith(found["n1"], f"{why} 2 of 3 nodes are left; agent: pid 7, log {path}")
    self.assertEqual(one.tend(), {})
    self.assertEqual(one.num_failed, 1)
    self.assertEqual(one.mistake, why if code == 2 else "")

  def start(self, codes):
    """Returns a cluster of agents that have ended with these codes, or run, in zones a, b, a."""
    one = machine.LocalCluster(self.folder, etcd=None, run="run")
    processes = iter([mock.Mock(returncode=c, pid=7, poll=lambda code=c: code) for c in codes])
    with mock.patch.object(children, "start", lambda *_, **__: next(processes)):
      for number in range(len(codes)):
        one.start_agent(f"n{number}", "aba"[number], arguments=[], environ={})
    return one

  def test_its_etcd_starts_again_whatever_happens(self):
    etcd = mock.Mock(endpoint="https://h:2")
    etcd.tend.side_effect = [None, OSError("etcd.log"), None]
    replaced = dict(find_binary=mock.DEFAULT, PrivateEtcd=lambda *_, **__: etcd)
    one = machine.LocalCluster(self.folder, etcd=None, run="run")
    with mock.patch.multiple(machine.private_etcd, **replaced):
      one.take_folder()
    for _ in range(3):
      self.assertEqual(one.tend(), {})
    self.assertEqual(etcd.tend.call_count, 3)

  def test_the_nodes_of_a_zone_that_run(self):
    one = self.start([-9, None, None])
    self.assertEqual([*map(one.find_running, "abc")], [["n2"], ["n1"], []])

  @parameterized.named_parameters(
      ("one_lives", (0, 1), True),
      ("only_one_that_joins", (1,), False),
      ("nobody_has_begun", (), False),
      ("no_view", None, False),
  )
  def test_whether_members_live(self, numbers, want):
    one = object.__new__(machine.LocalCluster)
    codes = {"n0": None, "n1": 2, "n2": None}
    one._agents = {n: mock.Mock(poll=lambda code=code: code) for n, code in codes.items()}
    view = None if numbers is None else members.view(1, *numbers)
    one._registry = mock.Mock(read_view=lambda: view)
    self.assertEqual(one.has_live_members(), want)
    one._registry.read_view = mock.Mock(side_effect=OSError("away"))
    self.assertTrue(one.has_live_members())


class EndpointTest(folders.FolderCase):

  def test_it_is_told_while_the_run_lasts(self):
    endpoint = endpoint_lib.RunAddress("https://127.0.0.1:2379", "run")
    endpoint_lib.write(self.folder, endpoint)
    self.assertEqual(endpoint_lib.read(self.folder), endpoint)
    for _ in range(2):
      endpoint_lib.remove(self.folder)
    with self.assertRaisesRegex(ValueError, "No cluster runs in .*--etcd"):
      endpoint_lib.read(self.folder)
    (self.folder / "summary.json").write_text("{}")
    with self.assertRaisesRegex(ValueError, "has ended: see .*bamboo report"):
      endpoint_lib.read(self.folder)

  @parameterized.parameters("{", "[]", '{"etcd": 3, "run": "run"}')
  def test_a_damaged_file(self, text):
    (self.folder / "endpoint.json").write_text(text)
    with self.assertRaisesRegex(ValueError, "endpoint.json is damaged: "):
      endpoint_lib.read(self.folder)
