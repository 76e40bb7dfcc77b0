import collections
from concurrent import futures
import functools
import itertools
import json
import os
import pathlib
import tempfile
import threading

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.checkpoint import parts as parts_lib
from bamboo_jax.recovery import agreement
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.train import build
from bamboo_jax.train import saving
from tests import tiny

_OWNERS = [(0, 1), (2, 3)]  # Stage 0 is written by 0, stage 1 by 3.


class SavePartsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("one_node", [(0,)], 0, {0: (0,)}),
      ("one_pipeline", [(2, 1, 0)], 0, {2: (0,), 1: (1,), 0: (2,)}),
      ("in_turn", [(0, 1, 2), (3, 4, 5)], 0, {0: (0,), 4: (1,), 2: (2,)}),
      ("others_idle", [(4, 1), (2, 3)], 1, {4: (0,), 3: (1,)}),
      ("two_stages", [(0, 0, 2), (3, 4, 4)], 0, {0: (0,), 4: (1,), 2: (2,)}),
      ("both_of_one", [(5, 1, 5), (3, 4, 6)], 1, {5: (0, 2), 4: (1,)}),
  )
  def test_plan(self, owners, writer, stages):
    save = parts_lib.plan_save("8.v3", 8, owners)
    self.assertEqual(save, parts_lib.Save("8.v3", 8, writer, stages))

  def test_each_stage_is_written_once_by_an_owner(self):
    for num_pipelines, num_stages in itertools.product((1, 2, 3), (1, 2, 3)):
      size = num_pipelines * num_stages
      for nodes in itertools.product(range(3), repeat=size):
        owners = [
            nodes[p * num_stages : (p + 1) * num_stages]
            for p in range(num_pipelines)
        ]
        save = parts_lib.plan_save("1.v1", 1, owners)
        written = [s for stages in save.stages.values() for s in stages]
        self.assertCountEqual(written, range(num_stages))
        for node, stages in save.stages.items():
          for stage in stages:
            self.assertIn(node, [row[stage] for row in owners])

  @parameterized.parameters(
      ({0: ()}, 0),
      ({0: (), 1: ()}, 0),
      ({0: (2, 4), 1: (2, 4)}, 4),
      ({0: (2, 4), 1: (2,)}, 2),
      ({0: (2,), 1: (2, 4), 2: (1, 2, 4)}, 2),
  )
  def test_newest_common(self, seen, expected):
    self.assertEqual(agreement.newest_common(seen), expected)

  @parameterized.parameters(
      ({0: (2, 4), 1: ()}, "node 0: 2, 4; node 1: none"),
      ({0: (2,), 5: (4,)}, "node 0: 2; node 5: 4"),
  )
  def test_nothing_in_common(self, seen, message):
    with self.assertRaisesRegex(base.CheckpointError, message):
      agreement.newest_common(seen)


class WorkerSaverTest(parameterized.TestCase):
  """Nodes 0 to 3 in one process; `vote` stands for a step of all of them."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.config = tiny.get_config()
    cls.task = build.make_task(cls.config)
    profile = build.make_profile(cls.config, cls.task)
    cls.plan = build.make_plan(cls.config, profile)
    cls.layers = spec_lib.init_layers(cls.task.whole)

  def setUp(self):
    super().setUp()
    temp = self.enterContext(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(temp).resolve() / "checkpoints"
    self.said = []
    self.nodes = {n: self.make(n) for n in range(4)}

  def make(self, number):
    saver = saving.make_writer(
        self.config,
        self.task,
        self.plan,
        directory=self.root,
        member=number,
        warn=lambda step, text: self.said.append((number, step, text)),
    )
    self.addCleanup(saver.close)
    return saver

  def state(self, step):
    """Returns the state of each stage, whose numbers depend on the step."""
    bounds, names = self.plan.partition.bounds, self.task.layer_names
    add = lambda a: (np.asarray(a) + step).astype(a.dtype)
    return {
        s: spec_lib.merge_layers(
            {n: jax.tree.map(add, self.layers[n]) for n in names[first:last]}
        )
        for s, (first, last) in enumerate(itertools.pairwise(bounds))
    }

  def vote(self, step, *, view=1, said=None):
    """Lets all nodes commit a step; they have written all by the next."""
    self.wait()
    said = said or {n: saver.say(step) for n, saver in self.nodes.items()}
    said = json.loads(json.dumps(said), object_hook=_numbers)
    for number, saver in self.nodes.items():
      saver.hear(step, said, **self.around(number, step, view))
    return said

  def wait(self):
    """Waits until all nodes have written what they have to write."""
    for saver in self.nodes.values():
      saver._wait(lambda: None)

  def around(self, number, step, view=1):
    states = self.state(step)
    own = {s: states[s] for row in _OWNERS for s in (0, 1) if row[s] == number}
    return {"view": view, "owners": _OWNERS, "states": own}

  def save_last(self, step, *, view=1):
    """Lets all nodes save their last state, each in a thread of its own."""
    meeting = _Meeting(self.nodes)

    def save(number):
      self.nodes[number].save_last(
          step,
          functools.partial(meeting.gather, number),
          waiting=lambda: None,
          **self.around(number, step, view),
      )

    with futures.ThreadPoolExecutor(len(self.nodes)) as pool:
      errors = [pool.submit(save, n).exception for n in self.nodes]
      return [error() for error in errors]

  def assert_restores(self, step):
    for saver in (self.make(7), self.nodes[min(self.nodes)]):
      found = saver.restore(step, self.task.layer_names)
      wanted = {}
      for state in self.state(step).values():
        wanted |= spec_lib.split_layers(state)
      jax.tree.map(np.testing.assert_array_equal, found, wanted)

  def test_parts_become_a_checkpoint(self):
    for step in range(1, 6):
      self.vote(step)
    self.wait()
    self.assertEqual(self.nodes[2].steps(), (2, 4))
    self.assert_restores(4)
    self.assertEqual(self.said, [])
    self.assertCountEqual(
        os.listdir(self.root / "4"), ["node0", "node3", "manifest.json"]
    )
    manifest = manifest_lib.read_manifest(self.root / "4")
    self.assertEqual(list(manifest.layers), list(self.task.layer_names))
    self.assertEqual(manifest.meta["save"], "4.v1")

  def test_one_process_reads_it_and_goes_on_and_back(self):
    self.vote(2)
    self.vote(3)
    self.wait()
    one = self.make(5)
    self.assertEqual(one.steps(), (2,))
    layers = one.restore(2, self.task.layer_names)
    one.hear(
        6,
        {5: one.say(6)},
        view=1,
        owners=[(5,)],
        states={0: spec_lib.merge_layers(layers)},
    )
    self.assertEqual(one.steps(), (2, 6))
    found = self.nodes[1].restore(6, self.task.layer_names[:1])
    wanted = {k: layers[k] for k in self.task.layer_names[:1]}
    jax.tree.map(np.testing.assert_array_equal, found, wanted)

  def test_no_checkpoint_before_all_parts_are_heard(self):
    self.vote(2)
    self.wait()
    self.assertEqual(self.nodes[0].steps(), ())
    said = {n: saver.say(3) for n, saver in self.nodes.items()}
    said[3] |= {"save": None, "part": None}
    self.vote(3, said=said)
    self.assertEqual(self.nodes[0].steps(), ())
    self.vote(4)  # Too early for the next one, but all parts have come.
    self.wait()
    self.assertEqual(self.nodes[0].steps(), (2,))
    self.assertRegex(self.said[0][2], "save of step 4 is left out")
    for step in (5, 6, 7):
      self.vote(step)
    self.wait()
    self.assertEqual(self.nodes[0].steps(), (2, 6))

  @parameterized.parameters(3, 0)
  def test_a_death_abandons_and_the_next_save_works(self, dead):
    self.vote(2)
    self.wait()
    for saver in self.nodes.values():
      saver.abandon()
    self.assertEqual(os.listdir(self.root), ["2.v1.tmp"])
    self.vote(3, view=2)
    self.assertEqual(self.nodes[1].steps(), ())
    self.nodes[dead] = self.make(dead)  # Somebody new, who knows nothing.
    self.vote(4, view=2)
    self.vote(5, view=2)
    self.wait()
    self.assertEqual(os.listdir(self.root), ["4"])
    self.assert_restores(4)

  def test_a_part_that_fails_is_told(self):
    (self.root / "2.v1.tmp").write_text("in the way")
    self.vote(2)
    self.wait()
    (self.root / "2.v1.tmp").unlink()
    self.vote(3)
    ((number, step, text),) = self.said
    self.assertEqual((number, step), (0, 2))
    self.assertRegex(text, "Cannot save step 2 to .*/2: node 0: File exists.$")
    self.vote(4)
    self.vote(5)
    self.wait()
    self.assertEqual(self.nodes[0].steps(), (4,))

  def test_a_folder_that_is_not_shared(self):
    self.vote(2)
    self.wait()
    path = self.root / "2.v1.tmp"
    (path / "node3").rename(path / "elsewhere")
    self.vote(3)
    self.vote(5)
    ((_, _, text),) = self.said
    self.assertRegex(text, "node3/.* is missing; .* a folder that they share.")
    self.assertEqual(self.nodes[0].steps(), ())

  @parameterized.named_parameters(
      ("saved_before", (2, 3, 4, 5), 4),
      ("in_flight", (2, 3, 4), 4),
      ("another_in_flight", (4,), 5),
      ("nothing_before", (), 3),
  )
  def test_last(self, votes, step):
    for done in votes:
      self.vote(done)
    self.assertEqual(self.save_last(step), [None] * 4)
    self.assertEqual(self.nodes[3].steps()[-1], step)
    self.assertNotIn(".tmp", "".join(os.listdir(self.root)))
    self.assert_restores(step)
    self.assertEqual(self.said, [])

  def test_last_fails(self):
    (self.root / "3").write_text("in the way")
    for error in self.save_last(3):  # On all nodes.
      self.assertIsInstance(error, base.CheckpointError)
      self.assertRegex(str(error), "Cannot save step 3")
    self.assertLen(self.said, 2)  # It was tried twice.

  def test_another_run(self):
    self.save_last(2)
    self.config = tiny.get_config()
    self.config.seed = 5
    with self.assertRaisesRegex(base.CheckpointError, "it has seed=0, this"):
      self.make(0).restore(2, self.task.layer_names)

  def test_old_ones_are_removed(self):
    self.config = tiny.get_config()
    self.config.checkpoint.keep = 1
    self.nodes = {n: self.make(n) for n in range(4)}
    (self.root / "9.0.tmp").mkdir()  # Left by somebody else.
    for step in range(1, 8):
      self.vote(step)
    self.wait()
    self.assertEqual(os.listdir(self.root), ["6"])

  def test_before_the_first_step(self):
    names = self.task.layer_names[-1:]
    found = self.nodes[0].restore(0, names)
    wanted = {name: self.layers[name] for name in names}
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


class _Meeting:
  """Where threads that stand for nodes tell each other something."""

  def __init__(self, nodes):
    self._barrier = threading.Barrier(len(nodes))
    self._said = collections.defaultdict(dict)

  def gather(self, number, key, value):
    self._said[key][number] = json.loads(json.dumps(value))
    self._barrier.wait(60)
    return self._said[key]


def _numbers(content):
  return {int(k) if k.isdigit() else k: v for k, v in content.items()}


if __name__ == "__main__":
  absltest.main()
