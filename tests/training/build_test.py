"""What a config may have, what of it reaches the programs, and what a policy changes in it."""

import itertools
import sys
from unittest import mock

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

import bamboo_jax
from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import machines
from bamboo_jax.recovery import policies
from bamboo_jax.training.setup import accept, build, sizes
from tests import folders, layouts, profiles, tiny


def make_model():
  init = lambda key: {"w": jnp.zeros(3)}
  loss = lambda params, batch: ((batch["x"] @ params["w"]).mean(), {"step_ms": 1.0})
  return bamboo_jax.from_loss(init, loss, has_aux=True, batch_keys=("x",))


def make_data():
  return {"x": np.zeros((256, 3), np.float32)}


def make_tokens(sequence_length, dtype, token):
  return dict.fromkeys(("inputs", "targets"), np.full((64, sequence_length), token, dtype))


class CheckConfigTest(parameterized.TestCase):

  @parameterized.parameters(
      ("node.mesh.tensor", 2, "config.node.mesh needs executor='rows'"),
      ("pipeline.layout", "templates", "layout='templates' needs executor="),
      ("pipeline.num_shares", 2, "num_shares=2 must be num_pipelines=1"),
      ("model.name", "paced", "model.name='paced' needs executor"),
      ("recovery.slow", "remove", "slow='remove' needs executor='rows'"),
      ("pipeline.schedule", "gpipe", "schedule='gpipe' needs executor='rows': a tick"),
  )
  def test_programs_of_all_nodes_refuse(self, name, value, message):
    self.refuse(message, **{name: value, "pipeline.executor": "spmd"})

  def test_refuses_a_metric_that_the_log_has(self):
    config = bamboo_jax.get_config("copies")
    config.model.name, config.data.name = f"{__name__}:make_model", f"{__name__}:make_data"
    with self.assertRaisesRegex(ValueError, "A metric cannot be called 'step_ms', a name that"):
      build.make_task(accept.accept(config))

  @parameterized.parameters(
      ("i8", 99, "data has vocab_size=100, more than the model's vocab_size=16"),
      ("f4", 1, "'inputs' of the data must have integers, got float32"),
  )
  def test_refuses_own_tokens(self, dtype, token, message):
    config = tiny.make_config(data__name=f"{__name__}:make_tokens")
    config.data.options = {"dtype": dtype, "token": token}
    with self.assertRaisesRegex(ValueError, message):
      build.make_task(accept.accept(config))

  def test_refuses_float64(self):
    with jax.enable_x64(True):
      with self.assertRaisesRegex(ValueError, "^JAX_ENABLE_X64 is set, but"):
        build.make_task(tiny.get_config())

  def refuse(self, message, **changes):
    config = tiny.get_config()
    config.pipeline.microbatch_size = 2
    config.update_from_flattened_dict(changes)
    with self.assertRaisesRegex(ValueError, message):
      accept.accept(config)


class BuildTest(parameterized.TestCase):

  def test_devices_of_a_node_share_passes_and_state(self):
    config = tiny.get_config()
    config.plan.memory_limit_gib = 1.0
    config.pipeline.microbatch_size = 2
    task = build.make_task(config)
    single = build.make_profile(config, task)
    config.node.mesh.data = config.node.mesh.tensor = 2
    shared = build.make_profile(config, task)
    for layer, part in zip(single.layers, shared.layers, strict=True):
      self.assertEqual(part.backward_ms, layer.backward_ms / 4)
      self.assertEqual(part.parameter_bytes, layer.parameter_bytes)
    self.assertEqual(shared.link_latency_ms, single.link_latency_ms)
    limit_bytes = machines.find_memory_limit(accept.accept(config))
    self.assertEqual(limit_bytes, 4 * 2**30)

  @parameterized.parameters((None, 2, 3), (2e-3, 3, 5))
  def test_memory_bounds_templates(self, limit_gib, least, most):
    config = tiny.get_config()
    config.pipeline.layout, config.pipeline.num_stages = "templates", 2
    config.redundancy.mode = "none"
    config.plan.memory_limit_gib = limit_gib
    costs = dict(parameter_bytes=2**18, slot_bytes=2**19)
    profile = profiles.make_profile(profiles.make_layer(n, **costs) for n in "abcdef")
    found = build.make_templates(accept.accept(config), profile)
    depths = [template.partition.num_stages for template in found]
    self.assertEqual((depths[0], depths[-1]), (least, most))

  @parameterized.parameters(
      ("model.prng", "rbg", "prng"), ("pipeline.remat", "dots", "remat"), ("seed", 7, "seed")
  )
  def test_the_model_as_one_stage(self, key, value, name):
    config = tiny.get_config()
    self.assertNotEqual(getattr(build.make_task(config).whole, name), value)
    config.update_from_flattened_dict({key: value})
    self.assertEqual(getattr(build.make_task(config).whole, name), value)


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

  @parameterized.parameters(
      ("on_demand", "1,0/0,,slow", {}),
      ("bamboo", "1,0/0,,slow", {"pipeline__executor": "spmd"}, "line 1: slow needs executor"),
      # Spares may form more pipelines than there are at first.
      (None, "1,5/0,,kill", {"pipeline__num_shares": 6}, "", 1),
      (None, "1,5/0,,kill", {}, "line 1: pipeline must be from 0 to 1, got 5"),
  )
  def test_faults_that_can_happen(self, name, text, changes, problem="", count=0):
    path = self.folder / "faults.csv"
    path.write_text(text)
    config = accept.accept(make_config(name, **changes))
    with self.refuses_if(problem):
      self.assertLen(sizes.read_faults(config, str(path)), count)

  def test_grid_has_one_partition_for_each_depth(self):
    one = dict(pipeline__num_stages=4, pipeline__num_pipelines=1)
    config = make_config("varuna", **one)
    config = accept.accept(config)
    plan = build.make_plan(config, layouts.make_profile(12))
    rules = build.make_rules(config, plan)
    found = {tuple(p.num_stages for p in rules.planner.partitions(n)) for n in range(2, 7)}
    self.assertEqual(found, {(2,), (3,), (4,), (6,)})
