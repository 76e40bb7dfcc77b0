from absl.testing import parameterized

from bamboo_jax.schedule import costs as costs_lib
from tests import schedules


class StageCostsTest(parameterized.TestCase):

  @parameterized.parameters(("1F0", 2.0), ("1RF0", 0.25), ("0B3", 3.0))
  def test_pass_ms(self, text, want):
    stages = costs_lib.StageCosts(
        forward_ms=(1.0, 2.0), backward_ms=(3.0, 4.0), transfer_ms=(0.5,), redundant_ms=(0.5, 0.25)
    )
    self.assertEqual(stages.pass_ms(schedules.parse(text)), want)

  @parameterized.parameters(
      ({"backward_ms": (1.0,)}, "backward_ms must have 2 entries"),
      ({"transfer_ms": (1.0, 1.0)}, "transfer_ms must have 1 entries"),
      ({"residual_bytes": (1,)}, "residual_bytes must have 2 entries"),
      ({"forward_ms": ()}, "forward_ms must have 0 entries for 0 stages"),
      ({"forward_ms": (1.0, -1.0)}, "forward_ms must not be negative"),
  )
  def test_refuses(self, wrong, message):
    right = {"forward_ms": (1.0, 1.0), "backward_ms": (1.0, 1.0), "transfer_ms": (1.0,)}
    with self.assertRaisesRegex(ValueError, message):
      costs_lib.StageCosts(**(right | wrong))
