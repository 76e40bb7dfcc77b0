"""Memory of stages, against tables that can be added up by hand."""

from absl.testing import parameterized

from bamboo_jax.plan import memory as memory_lib
from tests import profiles


def _layer(name, *, parameters, activation, residual):
  return profiles.make_layer(
      name,
      parameter_bytes=parameters,
      slot_bytes=2 * parameters,
      activation_bytes=activation,
      residual_bytes=residual,
  )


_LAYERS = (
    _layer("a", parameters=100, activation=3, residual=10),
    _layer("b", parameters=200, activation=5, residual=20),
    _layer("c", parameters=400, activation=7, residual=40),
    _layer("d", parameters=800, activation=9, residual=80),
)


class MemoryTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("1f1b", "1f1b", 3, 8, (3, 2, 1)),
      ("1f1b_few", "1f1b", 3, 2, (2, 2, 1)),
      ("gpipe", "gpipe", 3, 8, (8, 8, 8)),
  )
  def test_in_flight_bounds(self, schedule, num_stages, num_microbatches, want):
    got = memory_lib.in_flight_bounds(
        schedule=schedule,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
    )
    self.assertEqual(got, want)

  def test_unknown_schedule(self):
    with self.assertRaisesRegex(ValueError, "schedule '1fb1'; .* '1f1b'"):
      memory_lib.in_flight_bounds(
          schedule="1fb1", num_stages=1, num_microbatches=1
      )

  @parameterized.named_parameters(
      ("one_of_one", 1, 1, 1),  # There is nothing to sum.
      ("two_of_two", 2, 2, 2),
      ("four_on_two", 4, 2, 3),
      ("four_on_one", 4, 1, 5),
  )
  def test_count_gradients(self, num_shares, num_pipelines, want):
    got = memory_lib.count_gradients(
        num_shares=num_shares, num_pipelines=num_pipelines
    )
    self.assertEqual(got, want)

  @parameterized.named_parameters(
      # Stage, first layer, one after the last, then what is expected:
      # parameters, slots, gradients, residuals, transfers.
      ("first", 0, 0, 2, (300, 600, 900, 3 * 30, 2 * 5)),
      ("middle", 1, 2, 3, (400, 800, 1200, 2 * 40, 2 * 5 + 2 * 7)),
      ("last", 2, 3, 4, (800, 1600, 2400, 80, 2 * 7)),
  )
  def test_stage_memory(self, stage, first, last, want):
    model = memory_lib.MemoryModel(
        _LAYERS, in_flight=(3, 2, 1), num_gradients=3
    )
    got = model.stage_memory(stage, first, last)
    self.assertEqual(got, memory_lib.StageMemory(*want))
    self.assertEqual(got.resident_bytes, sum(want[:3]))
    self.assertEqual(got.total_bytes, sum(want))

  def test_total_is_the_sum_of_the_parts(self):
    model = memory_lib.MemoryModel(
        _LAYERS, in_flight=(3, 2, 1), num_gradients=2
    )
    for stage in range(3):
      for first in range(4):
        for last in range(first + 1, 5):
          self.assertEqual(
              model.total_bytes(stage, first, last),
              model.stage_memory(stage, first, last).total_bytes,
          )
