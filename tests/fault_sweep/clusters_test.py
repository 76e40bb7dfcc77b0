"""What `launch.layouts --processes` runs."""

import json
import pathlib
import re
from unittest import mock

from absl.testing import absltest

from tests.fault_sweep import clusters as clusters_lib


class ClustersTest(absltest.TestCase):

  def test_draw(self):
    clusters = clusters_lib.Clusters([], num_events=2)
    plain, *drawn = clusters.draw(40, seed=3)
    self.assertIsNone(plain.storm_seed)
    self.assertEqual([l.storm_seed for l in drawn], [*range(3, 42)])
    sizes = {l.num_pipelines * l.num_stages for l in drawn}
    self.assertEqual(sizes, {1, 2, 3, 4, 6})

  def test_run(self):
    commands = []

    def call(command):
      commands.append(command)
      flag = next(c for c in command if c.startswith("--workdir="))
      workdir = pathlib.Path(flag.partition("=")[2])
      workdir.mkdir()
      (workdir / "summary.json").write_text(json.dumps({"state_sha256": "a"}))

    clusters = clusters_lib.Clusters(["--config=c.py"], num_events=2)
    plain, drawn = clusters.draw(2, seed=7)
    with mock.patch.object(clusters_lib, "_call", call):
      self.assertEqual(clusters.run(plain), "a")
      self.assertEmpty(clusters.drawn)
      self.assertEqual(clusters.run(drawn), "a")
    self.assertIn("--random_kills=2", clusters.drawn)
    self.assertEqual(
        [c[0] for c in commands], ["launch.train", "launch.cluster"]
    )
    same = r"--config=|--config.(num_steps|pipeline.num_shares)="
    given = [[a for a in c if re.match(same, a)] for c in commands]
    self.assertEqual(given[0], given[1])
    self.assertLen(given[0], 3)
    self.assertContainsSubset(clusters.drawn, commands[1])

  def test_a_run_that_fails(self):
    with self.assertRaisesRegex(RuntimeError, "exit code 1: .*no_such_module"):
      clusters_lib._call(["no_such_module"])
