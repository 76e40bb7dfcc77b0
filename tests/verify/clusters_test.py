"""What `bamboo verify --layouts=N --processes` runs."""

import json
import pathlib
import re
from unittest import mock

from absl.testing import absltest

from bamboo_jax.training.setup import accept
from bamboo_jax.verify import layouts as layouts_lib, table
from configs import sweep_faults

CONFIG = accept.accept(sweep_faults.get_config())


class ClustersTest(absltest.TestCase):

  def test_run(self):
    commands = []

    def call(command):
      commands.append(command)
      flag = next(c for c in command if c.startswith("--workdir="))
      workdir = pathlib.Path(flag.partition("=")[2])
      workdir.mkdir()
      state = "b" if "--seed=7" in command else "a"
      (workdir / "summary.json").write_text(json.dumps({"state_sha256": state}))

    options = table.Options(("mixed",), num_events=2, seed=7)
    jobs = table.plan(CONFIG, options, count=2, arguments=["--config=c.py"])
    size = lambda l: l["pipeline.num_pipelines"] * l["pipeline.num_stages"]
    many = table.plan(CONFIG, options, count=40, arguments=["--config=c.py"])
    self.assertEqual({size(dict(job.layout.settings)) for job in many}, {1, 2, 3, 4, 6})
    with mock.patch.object(layouts_lib, "_call", call):
      (other,), (same,) = map(table.run, jobs)
    self.assertEqual((other.states, same.states), ({}, {"a": 1}))
    (failure,) = other.failures
    self.assertEqual(failure.message, "RuntimeError: b is not a, the state of one process")
    self.assertEqual(
        table.find_command(other, failure, ["--config=c.py"], options),
        "bamboo verify --config=c.py --layouts=1 --seed=7 --processes --num_events=2",
    )
    modules = [c[0] for c in commands]
    self.assertEqual(modules, ["launch.train"] + ["launch.cluster"] * 2)
    same = r"--config=|--config.(num_steps|pipeline.num_shares)="
    given = [sorted(a for a in c if re.match(same, a)) for c in commands]
    self.assertEqual([given[0]] * 3, given)
    self.assertLen(given[0], 3)
    self.assertIn("--random_kills=2", commands[2])

  def test_a_run_that_fails(self):
    with self.assertRaisesRegex(RuntimeError, "exit code 1: .*no_such_module"):
      layouts_lib._call(["no_such_module"])

  def test_a_run_that_hangs(self):
    with mock.patch.object(layouts_lib, "_LIMIT_SECS", 1.0):
      with self.assertRaisesRegex(RuntimeError, "not done after 1.0 s"):
        layouts_lib._call(["http.server", "0", "--bind=127.0.0.1"])
