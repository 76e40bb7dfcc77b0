"""Policies of the simulator as settings of a run."""

import itertools
import sys
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base, config as config_lib
from bamboo_jax.recovery import policies
from bamboo_jax.training.setup import accept, build, sizes
from tests import folders, layouts, tiny

_NUMBERS = itertools.count()
_ALL = ("shadow", "reroute", "reconfigure", "checkpoint")


def make_config(name, **changes):
  config = tiny.get_config()
  config.redundancy.mode = "bubble"
  config.pipeline.num_pipelines = 2
  config.recovery.policy = name
  return tiny.change(config, **changes)


class PolicyTest(folders.FolderCase):

  @parameterized.parameters(
      ("bamboo", "depth", ("shadow", "reconfigure", "checkpoint")),
      ("oobleck", "templates", ("reconfigure", "checkpoint")),
      ("recycle", "depth", ("reroute", "checkpoint")),
      ("varuna", "grid", ("checkpoint",)),
      ("checkpoint", "depth", ("checkpoint",)),
      ("sample_dropping", "depth", ("drop", "checkpoint")),
      ("on_demand", "depth", ("checkpoint",)),
      ("full_with_shadows", "templates", _ALL),
  )
  def test_rungs_of_runs_are_those_of_the_simulator(self, name, layout, rungs):
    config = make_config(name)
    config = accept.accept(config)
    profile = layouts.make_profile(6)
    templates = build.make_templates(config, profile)
    plan = build.make_plan(config, profile, num_stages=2)
    ladder = build.make_rules(config, plan, templates).ladder
    taken = {
        "shadow": ladder.has_replicas,
        "reroute": ladder.reroute != "none",
        "drop": ladder.options.drop,
        "reconfigure": ladder.options.reconfigure,
        "checkpoint": ladder.options.checkpoint,
    }
    self.assertEqual({r for r, is_on in taken.items() if is_on}, {*rungs})
    self.assertEqual(config.pipeline.layout, layout)
    is_paid = config.cost.market == "on_demand"
    self.assertEqual(is_paid, name == "on_demand")
    self.assertEqual(config.recovery.is_preemptible, not is_paid)

  @parameterized.parameters("bamboo", "varuna", "parcae", "oobleck", "full")
  def test_nothing_is_left_of_a_policy_before(self, first):
    for name in ("checkpoint", "oobleck", "full_with_shadows", "on_demand"):
      self.assertEqual(policies.find(f"{first}+{name}"), policies.find(name))

  def make_plugin(self, text):
    """Returns the name of a new module on the path."""
    name = f"plugin_{next(_NUMBERS)}"
    (self.folder / f"{name}.py").write_text(text)
    self.enterContext(mock.patch.object(sys, "path", [str(self.folder), *sys.path]))
    self.addCleanup(policies.POLICIES.pop, "mine", None)
    return name

  def test_a_plugin_registers_one(self):
    name = self.make_plugin(
        "from bamboo_jax import sim\n"
        "sim.register('mine', {'recovery.checkpoint': False,"
        " 'pipeline.layout': 'grid', 'recovery.hand_over': False, 'study.depths': (1.0,)})\n"
    )
    config = make_config("mine", plugins=(name,))
    config = accept.accept(config)
    self.assertEqual(config.pipeline.layout, "grid")
    self.assertFalse(config.recovery.checkpoint)
    self.assertFalse(config.recovery.hand_over)
    self.assertTrue(config.recovery.reconfigure)
    self.assertEqual(config.study, config_lib.StudySection())

  @parameterized.parameters(
      ("from nowhere import x", "No module named 'nowhere'; a plugin must be"),
      ("1 / 0", "'plugin_.*' cannot be imported: ZeroDivisionError: div"),
      ("def", "'plugin_.*' cannot be imported: SyntaxError: "),
  )
  def test_plugins_that_cannot_be_imported(self, text, message):
    name = self.make_plugin(text)
    with self.assertRaisesRegex(ValueError, f"^config.plugins: {message}"):
      accept.accept(make_config(None, plugins=(name,)))

  def test_a_run_has_no_study(self):
    self.addCleanup(policies.POLICIES.pop, "mine")
    policies.register("mine", {"study.layout": "liveput"})
    with self.assertRaisesRegex(ValueError, "study.layout='liveput', which only sim"):
      accept.accept(make_config("mine"))
    config = make_config(None, study__durations__boot_secs=1.0)
    with self.assertRaisesRegex(ValueError, "^config.study.durations.boot_secs=1.0 is for `bamb"):
      accept.accept(config)
    self.assertEqual(accept.accept(config, is_study=True).study.durations.boot_secs, 1.0)

  @parameterized.parameters(
      ("bambo", {}, "Unknown policy 'bambo'; did you mean 'bamboo'"),
      ("full", {"pipeline__num_stages": 1}, "mode='bubble' needs at least 2 stages"),
  )
  def test_refuses(self, name, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      accept.accept(make_config(name, **changes))

  @parameterized.parameters(("none", "bubble"), ("eager", "eager"))
  def test_a_mode_of_replicas_stays(self, mode, want):
    config = accept.accept(make_config("bamboo", redundancy__mode=mode))
    self.assertEqual(config.redundancy.mode, want)

  @parameterized.parameters((5, 4, 1, 3), (5, 3, 1, None), (4, 4, 1, 3), (3, 3, 0, 2), (2, 2, 1, 1))
  def test_templates_deeper_than_the_model(self, most, stages, failures, take):
    config = make_config("oobleck", pipeline__num_stages=stages)
    config = accept.accept(config)
    config = config.changed({"recovery.num_failures": failures})
    profile = layouts.make_profile(most)
    make = lambda: build.make_templates(config, profile)
    if take is not None:
      message = (
          f"recovery.policy=oobleck needs pipelines of up to .* num_stages="
          f"{stages} on.* into {most} parts .* --config.pipeline.num_stages="
          f"{take}, or"
      )
      with self.assertRaisesRegex(base.InfeasibleError, message):
        make()
      config = config.changed({"pipeline.num_stages": take})
    self.assertLessEqual(make()[-1].partition.num_stages, most)

  def test_faults_that_cannot_happen(self):
    path = self.folder / "faults.csv"
    path.write_text("1,0/0,,slow\n")
    self.assertEqual(sizes.read_faults(accept.accept(make_config("on_demand")), str(path)), ())
    program = accept.accept(make_config("bamboo", pipeline__executor="spmd"))
    with self.assertRaisesRegex(ValueError, "line 1: slow needs executor"):
      sizes.read_faults(program, str(path))

  def test_faults_of_pipelines_that_spares_form(self):
    path = self.folder / "faults.csv"
    path.write_text("1,5/0,,kill\n")
    make = lambda **changes: accept.accept(make_config(None, **changes))
    self.assertLen(sizes.read_faults(make(pipeline__num_shares=6), str(path)), 1)
    with self.assertRaisesRegex(ValueError, "line 1: pipeline must be from 0 to 1, got 5"):
      sizes.read_faults(make(), str(path))

  def test_grid_has_one_partition_for_each_depth(self):
    one = dict(pipeline__num_stages=4, pipeline__num_pipelines=1)
    config = make_config("varuna", **one)
    config = accept.accept(config)
    plan = build.make_plan(config, layouts.make_profile(12))
    rules = build.make_rules(config, plan)
    found = {tuple(p.num_stages for p in rules.planner.partitions(n)) for n in range(2, 7)}
    self.assertEqual(found, {(2,), (3,), (4,), (6,)})
