"""The simulator from Python: its page, without JAX."""

import json
import os
import re
from unittest import mock

from absl.testing import absltest, parameterized

from bamboo_jax import base, config as config_lib, sim
from bamboo_jax.traces import trace as trace_lib
from tests import folders, profiles
from tests.launch import commands

_NO_JAX = "import sys\nsys.modules['jax'] = sys.modules['jaxlib'] = None"
_JAX = "print('end')\nimport bamboo_jax.models.text.gpt2"


class PageTest(absltest.TestCase):

  def test_the_page_runs_without_jax(self):  # Starts Python and plans, 3 s.
    page = (folders.ROOT / "docs/research/simulator.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    self.assertLen(blocks, 4)
    done = commands.run("-c", "\n".join([_NO_JAX, *blocks, _JAX]))
    self.assertIn("import of jax halted", done.stderr)  # By the last line, and not before.
    lines = done.stdout.splitlines()
    self.assertEqual([line.split()[0] for line in lines[:3]], ["checkpoint", "bamboo", "full"])
    *_, patient, two, end = lines
    patient, two = float(patient), float(two)
    self.assertEqual(end, "end")
    self.assertGreater(min(patient, two), 0.0)
    self.assertNotEqual(patient, two)


class SimulateTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.trace = sim.generate_trace(nodes_per_zone=(8,), hours=1.0)

  @parameterized.parameters("checkpoint", "full")  # The last forecasts.
  def test_nobody_is_ever_alive(self, policy):
    events = (trace_lib.Event(0, kind, "a") for kind in ("add", "remove"))
    trace = trace_lib.Trace("gone", tuple(events), duration_ms=1000)
    with self.assertRaisesRegex(base.InfeasibleError, "has at most 0 nodes"):
      sim.simulate(trace, policy)

  def test_a_policy_is_found_by_name(self):
    self.assertContainsSubset({"bamboo", "oobleck"}, sim.list_policies())
    with self.assertRaisesRegex(ValueError, "'bambo'; did you mean 'bamboo'"):
      sim.simulate(self.trace, "bambo")

  @parameterized.parameters(
      (None, None, 0.918),
      ({"cost.instance": "p4d.24xlarge", "cost.date": None}, None, 5.33),
      ({"cost.instance": None, "cost.date": None}, None, 0.918),
      ({"cost.instance": "p4d.24xlarge", "cost.date": None}, profiles.PRICE, 1.0),
  )
  def test_price(self, changes, price, usd_per_hour):
    config = changes and config_lib.Config().changed({**sim.JOB, **changes})
    account = sim.simulate(self.trace, "checkpoint", config, price=price).account
    self.assertEqual(account.price.spot_usd_per_hour, usd_per_hour)

  def test_costs_are_needed(self):
    with self.assertRaisesRegex(ValueError, "config.plan.profile must name a file"):
      sim.make_policy("own", self.trace, config_lib.Config())

  def test_plugins_add_rows(self):  # Starts Python and simulates, 5 s.
    folder = self.folder
    (folder / "mine.py").write_text(
        "from bamboo_jax import sim\nsim.register('mine', {'recovery.reconfigure': False})\n"
    )
    path = os.pathsep.join([str(folders.ROOT), str(folder)])
    self.enterContext(mock.patch.dict("os.environ", PYTHONPATH=path))
    done = commands.run(
        "-c",
        "import sys; from launch import cli, simulate\n"
        "sys.argv += ['--config=sim/compare:quick', '--policies=mine', '--config.metrics.plots=0',"
        f" '--config.plugins=(\"mine\",)', '--workdir={folder}']\n"
        "cli.run(simulate.main, is_study=True)",
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn("\nmine,", (folder / "summary.csv").read_text())
    found = json.loads((folder / "provenance.json").read_text())
    self.assertEqual(found["config"]["plugins"], ["mine"])
    self.assertIn("numpy", found["versions"])
    self.assertTrue(found["command"])
