from absl.testing import parameterized

from bamboo_jax.schedule import holdings as holdings_lib
from tests import schedules


def after(text, start=None):
  """What a node holds after the instructions in `text`, without empty sets."""
  got = holdings_lib.after(map(schedules.parse, text.split()), start or holdings_lib.NOTHING)
  fields = ("activations", "gradients", "residuals", "accumulated")
  return {f: sorted(getattr(got, f)) for f in fields if getattr(got, f)}


class HoldingsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("", {}),
      ("0RA2<0", {"activations": [(0, 2)]}),
      ("2RF2", {"activations": [(2, 2)], "residuals": [(2, 2)]}),
      # What has been sent is kept.
      ("1F2 1SA2>2", {"activations": [(1, 2)], "residuals": [(1, 2)]}),
      (
          "1F2 1SA2>2 1RG2<2 1B2 0SG2>0",
          {"activations": [(1, 2)], "gradients": [(0, 2), (1, 2)], "accumulated": [(1, 2)]},
      ),
      ("0F0 0B0", {"activations": [(0, 0)], "accumulated": [(0, 0)]}),
  )
  def test_after(self, text, want):
    self.assertEqual(after(text), want)

  def test_goes_on(self):
    start = holdings_lib.Holdings(accumulated={(0, 0)}, residuals={(0, 1)})
    # A forward pass for its output alone leaves no residuals.
    self.assertEqual(
        after("0F0 0B1", start), {"activations": [(0, 0)], "accumulated": [(0, 0), (0, 1)]}
    )
    self.assertEqual(start.accumulated, {(0, 0)})  # What it starts from stays.
