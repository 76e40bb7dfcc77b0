"""Where residuals wait, by memory, waits and link."""

from absl.testing import parameterized

from bamboo_jax.plan import partition as partition_lib, planner, residuals
from bamboo_jax.plan.times import predictor as predictor_lib
from bamboo_jax.schedule import costs as costs_lib
from tests import profiles

_COSTS = costs_lib.StageCosts(
    forward_ms=(1.0, 1.0), backward_ms=(2.0, 2.0), transfer_ms=(0.0,), residual_bytes=(30, 50)
)


class ResidualsTest(parameterized.TestCase):

  @parameterized.parameters(
      # Four passes: node 0 would keep 200 bytes of stage 1, node 1 120.
      (None, (0.0, 0.0), "device"),
      ((200, 120), (0.0, 0.0), "device"),
      ((199, 120), (20.0, 12.0), "host"),
      ((200, 119), (20.0, 12.0), "host"),
      ((199, 120), (19.9, 12.0), "inputs"),
      ((199, 120), (20.0, 11.9), "inputs"),
  )
  def test_place(self, free_bytes, wait_ms, want):
    got = residuals.choose_place(
        _COSTS, num_microbatches=4, free_bytes=free_bytes, wait_ms=wait_ms, host_bytes_per_ms=10.0
    )
    self.assertEqual(got, want)

  @parameterized.parameters(("device", (1.0, 1.0)), ("host", (4.0, 6.0)), ("inputs", (2.0, 1.5)))
  def test_time_of_redundant_passes(self, place, want):
    got = residuals.with_place(_COSTS, place, host_bytes_per_ms=10.0, input_bytes=(10, 5))
    self.assertEqual(got.redundant_ms, want)

  @parameterized.parameters(
      (1e9, None, "device"),
      (1e9, 2**30, "device"),
      (1e9, 15 * 2**20, "host"),
      (1e-3, 15 * 2**20, "inputs"),
      (None, None, "host"),  # As measured.
  )
  def test_plan(self, rate, limit, want):
    layers = [
        profiles.make_layer(f"l{i}", residual_bytes=2**20, redundant_ms=7.0) for i in range(4)
    ]
    plan = planner.make_plan(
        profiles.make_profile(layers, host_bytes_per_ms=rate),
        num_stages=2,
        num_pipelines=1,
        num_microbatches=8,
        microbatch_size=1,
        memory_limit_bytes=limit,
    )
    self.assertEqual(plan.residuals, want)
    if want == "device":
      self.assertEqual(plan.costs.redundant_ms, plan.costs.forward_ms)
    if rate is None:
      self.assertEqual(plan.costs.redundant_ms, (14.0, 14.0))

  @parameterized.parameters(
      (1e9, None, "device"),
      (1e9, 2**30, "device"),
      (1e9, 15 * 2**20, "host"),
      (1e-3, 15 * 2**20, "inputs"),
      (None, None, "host"),  # As measured.
  )
  def test_predictor_places_them_alike(self, rate, limit, want):
    layers = [
        profiles.make_layer(f"l{i}", residual_bytes=2**20, redundant_ms=7.0) for i in range(4)
    ]
    profile = profiles.make_profile(layers, host_bytes_per_ms=rate)
    predictor = predictor_lib.Predictor(profile, num_microbatches=8, memory_limit_bytes=limit)
    partition = partition_lib.Partition((0, 2, 4))
    plain = predictor.stage_costs(partition)
    if rate is not None:
      input_bytes = [
          sum(layer.activation_bytes for layer in stage) for stage in (layers[:2], layers[2:])
      ]
      plain = residuals.with_place(plain, want, host_bytes_per_ms=rate, input_bytes=input_bytes)
    got = predictor.redundant_costs(partition, 8)
    self.assertEqual(got, plain)
