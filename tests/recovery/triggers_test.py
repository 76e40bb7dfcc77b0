"""The triggers of Bamboo."""

from absl.testing import parameterized

from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import triggers as triggers_lib
from bamboo_jax.schedule import failover

_FOUR = partition_lib.Partition((0, 1, 2, 3, 4))
_DEFAULT = triggers_lib.Triggers()


def _pipelines(num_pipelines, num_doubled):
  """Returns pipelines of 4 stages; in the first ones a node has two."""
  return [
      pipelines_lib.Pipeline(
          _FOUR,
          failover.Roles((0, 0, 2, 3) if i < num_doubled else (0, 1, 2, 3)),
      )
      for i in range(num_pipelines)
  ]


class TriggersTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Pipelines, doubled nodes, spares, most pipelines, then what fires.
      ("nothing", 2, 0, 3, None, []),
      ("refill", 12, 1, 1, None, ["1 spares can take the 1 stages"]),
      ("more_spares", 12, 1, 3, None, ["3 spares can take the 1 stages"]),
      ("too_few_spares", 12, 1, 0, None, []),
      ("close_to_fatal", 12, 2, 1, None, ["2 stages have no node of their"]),
      ("grow", 2, 0, 4, None, ["12 nodes suffice for 3 pipelines of 4"]),
      ("grow_no_more", 2, 0, 4, 2, []),
      ("from_nothing", 0, 0, 4, None, ["4 nodes suffice for 1 pipelines"]),
      (
          "all",
          1,
          1,
          5,
          None,
          ["5 spares can take", "no node of their own", "8 nodes suffice"],
      ),
  )
  def test_find(self, num_pipelines, num_doubled, num_spares, most, want):
    got = triggers_lib.find_triggers(
        _pipelines(num_pipelines, num_doubled),
        num_spares=num_spares,
        num_stages=4,
        max_pipelines=most,
        triggers=_DEFAULT,
    )
    self.assertLen(got, len(want), msg=got)
    for reason, words in zip(got, want, strict=True):
      self.assertIn(words, reason)

  @parameterized.named_parameters(
      ("refill", dict(refill=False)),
      ("max_doubled", dict(max_doubled=None)),
      ("grow", dict(grow=False)),
  )
  def test_each_can_be_switched_off(self, off):
    got = triggers_lib.find_triggers(
        _pipelines(1, 1),
        num_spares=5,
        num_stages=4,
        triggers=triggers_lib.Triggers(**off),
    )
    self.assertLen(got, 2)

  def test_limit_is_not_reached_by_a_twentieth(self):
    # 2 x 1 of 39 nodes is above 5 %, of 43 it is not.
    for num_pipelines, fires in ((10, True), (11, False)):
      got = triggers_lib.find_triggers(
          _pipelines(num_pipelines, 1),
          num_spares=0,
          num_stages=4,
          triggers=_DEFAULT,
      )
      self.assertEqual(bool(got), fires)

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, "max_doubled must be from 0 to 2"):
      triggers_lib.Triggers(max_doubled=5.0)
