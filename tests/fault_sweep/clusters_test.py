"""What `bamboo verify --layouts=N --processes` runs."""

import json
import pathlib
import random
import re
import tempfile
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.testing.fault_sweep import clusters as clusters_lib
from bamboo_jax.traces import readers, replay as replay_lib


class ClustersTest(parameterized.TestCase):

  def test_draw(self):
    clusters = clusters_lib.Clusters([], num_events=2)
    plain, *drawn = clusters.draw(40, seed=3)
    self.assertIsNone(plain.storm_seed)
    self.assertEqual([l.storm_seed for l in drawn], [*range(3, 42)])
    sizes = {l.num_pipelines * l.num_stages for l in drawn}
    self.assertEqual(sizes, {1, 2, 3, 4, 6})

  def test_run(self):
    commands, drawn = [], []

    def call(command):
      commands.append(command)
      flag = next(c for c in command if c.startswith("--workdir="))
      workdir = pathlib.Path(flag.partition("=")[2])
      workdir.mkdir()
      (workdir / "summary.json").write_text(json.dumps({"state_sha256": "a"}))

    clusters = clusters_lib.Clusters(["--config=c.py"], num_events=2)
    with mock.patch.object(clusters_lib, "_call", call):
      for layout in clusters.draw(3, seed=7):
        self.assertEqual(clusters.run(layout), "a")
        drawn.append(clusters.drawn)
    plain, trace, kills = drawn
    self.assertEmpty(plain)
    self.assertStartsWith(trace[0], "0,add,a/0")
    self.assertIn("--random_kills=2", kills)
    modules = [c[0] for c in commands]
    self.assertEqual(modules, ["launch.train"] + ["launch.cluster"] * 2)
    same = r"--config=|--config.(num_steps|pipeline.num_shares)="
    given = [[a for a in c if re.match(same, a)] for c in commands]
    self.assertEqual([given[0]] * 3, given)
    self.assertLen(given[0], 3)
    self.assertTrue(any(a.startswith("--trace=") for a in commands[1]))
    self.assertContainsSubset(kills, commands[2])

  @parameterized.parameters(*range(30))
  def test_a_trace_that_ends_with_enough_nodes(self, seed):
    lines = clusters_lib.draw_trace(random.Random(seed), 3, 6)
    with tempfile.NamedTemporaryFile("w+") as file:
      file.write("\n".join(lines))
      file.flush()
      trace = readers.read_traces([file.name])
    replay = replay_lib.plan_replay(trace, time_scale=1.0)
    self.assertLen(replay.first, 3)
    alive = {*replay.first}
    for event in replay.events:
      if event.kind == "add":
        alive.add(event.node)
      else:
        alive.discard(event.node)
    self.assertGreaterEqual(len(alive), 3)

  def test_a_run_that_fails(self):
    with self.assertRaisesRegex(RuntimeError, "exit code 1: .*no_such_module"):
      clusters_lib._call(["no_such_module"])

  def test_a_run_that_hangs(self):
    with mock.patch.object(clusters_lib, "_LIMIT_SECS", 1.0):
      with self.assertRaisesRegex(RuntimeError, "not done after 1.0 s"):
        clusters_lib._call(["http.server", "0", "--bind=127.0.0.1"])
