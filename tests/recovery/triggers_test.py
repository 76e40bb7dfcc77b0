"""The triggers of Bamboo."""

from absl.testing import parameterized

from bamboo_jax import config
from bamboo_jax.plan import partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import triggers
from bamboo_jax.schedule import failover

_FOUR = partition_lib.Partition((0, 1, 2, 3, 4))
_DEFAULT = config.RecoverySection()
_OFF = dict(refill=False, max_doubled=2.0, grow=False)


def _pipelines(num_pipelines, num_doubled):
  """Returns pipelines of 4 stages; in the first ones a node has two."""
  return [
      pipelines_lib.Pipeline(
          _FOUR, failover.Roles((0, 0, 2, 3) if i < num_doubled else (0, 1, 2, 3))
      )
      for i in range(num_pipelines)
  ]


class TriggersTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Pipelines, doubled nodes, spares, most pipelines, then what fires.
      ("nothing", 2, 0, 3, 2, []),
      ("refill", 12, 1, 1, 12, ["refill"]),
      ("more_spares", 12, 1, 3, 12, ["refill"]),
      ("too_few_spares", 12, 1, 0, 12, []),
      ("close_to_fatal", 12, 2, 1, 12, ["max_doubled"]),
      ("grow", 2, 0, 4, 3, ["grow"]),
      ("grow_no_more", 2, 0, 4, 2, []),
      ("from_nothing", 0, 0, 4, 1, ["grow"]),
      ("all", 1, 1, 5, 2, ["refill", "max_doubled", "grow"]),
  )
  def test_fire(self, num_pipelines, num_doubled, num_spares, most, want):
    given = _pipelines(num_pipelines, num_doubled)
    counts = dict(num_spares=num_spares, most_pipelines=most)
    self.assertEqual(triggers.fire(_DEFAULT, given, **counts), bool(want))
    for name in _OFF:  # Each of them alone.
      only = {**_OFF, name: getattr(_DEFAULT, name)}
      got = triggers.fire(config.RecoverySection(**only), given, **counts)
      self.assertEqual(got, name in want, msg=name)

  def test_limit_is_not_reached_by_a_twentieth(self):
    # 2 x 1 of 39 nodes is above 5 %, of 43 it is not.
    for num_pipelines, fires in ((10, True), (11, False)):
      got = triggers.fire(
          _DEFAULT, _pipelines(num_pipelines, 1), num_spares=0, most_pipelines=num_pipelines
      )
      self.assertEqual(got, fires)
