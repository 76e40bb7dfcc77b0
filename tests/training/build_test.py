"""What a config may have, and what of it reaches the programs."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

import bamboo_jax
from bamboo_jax.accounting import machines
from bamboo_jax.training.setup import accept, build
from tests import profiles, tiny


def make_model():
  init = lambda key: {"w": jnp.zeros(3)}
  loss = lambda params, batch: ((batch["x"] @ params["w"]).mean(), {"step_ms": 1.0})
  return bamboo_jax.from_loss(init, loss, has_aux=True, batch_keys=("x",))


def make_data():
  return {"x": np.zeros((256, 3), np.float32)}


class CheckConfigTest(parameterized.TestCase):

  @parameterized.parameters(
      ("node.mesh.tensor", 2, "config.node.mesh needs executor='rows'"),
      ("pipeline.layout", "templates", "layout='templates' needs executor="),
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


class MeshTest(parameterized.TestCase):

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


class TemplatesTest(parameterized.TestCase):

  @parameterized.parameters((None, 2, 3), (2e-3, 3, 5))
  def test_memory_bounds_them(self, limit_gib, least, most):
    config = tiny.get_config()
    config.pipeline.layout, config.pipeline.num_stages = "templates", 2
    config.redundancy.mode = "none"
    config.plan.memory_limit_gib = limit_gib
    costs = dict(parameter_bytes=2**18, slot_bytes=2**19)
    profile = profiles.make_profile(profiles.make_layer(n, **costs) for n in "abcdef")
    found = build.make_templates(accept.accept(config), profile)
    depths = [template.partition.num_stages for template in found]
    self.assertEqual((depths[0], depths[-1]), (least, most))


class TaskTest(parameterized.TestCase):

  @parameterized.parameters(
      ("model.prng", "rbg", "prng"), ("pipeline.remat", "dots", "remat"), ("seed", 7, "seed")
  )
  def test_the_model_as_one_stage(self, key, value, name):
    config = tiny.get_config()
    self.assertNotEqual(getattr(build.make_task(config).whole, name), value)
    config.update_from_flattened_dict({key: value})
    self.assertEqual(getattr(build.make_task(config).whole, name), value)
