"""If nothing goes on, the one is blamed that waits for nobody."""

from absl.testing import parameterized

from bamboo_jax.cluster import stalls as stalls_lib
from bamboo_jax.schedule import channel as channel_lib


def stall(*waits_for, posted=((3, "begun"),), view=3, is_waiting=False, segments=None):
  """Of a member that has started some `segments` of a ring of nodes 0, 1, 2."""
  ring = {} if segments is None else {"ring": (0, 1, 2), "num_segments": segments}
  begun = channel_lib.Begun(waits_for=waits_for, **ring)
  return stalls_lib.Stall(is_waiting, view, begun, tuple(posted))


_VOTED = ((3, "begun"), (3, "vote 7"))
_OLDER = ((2, "begun"), (2, "vote 6"))


class StallsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("somebody_works", {1: stall(0)}, None),
      ("frozen_before_a_transfer", {0: stall(1), 1: stall(), 2: stall(1)}, 1),
      ("in_a_chain_the_last_link", {0: stall(1), 1: stall(2), 2: stall()}, 2),
      ("frozen_before_a_vote", {0: stall(posted=_VOTED), 1: stall(), 2: stall(posted=_VOTED)}, 1),
      (
          "frozen_before_it_adopted_the_view",
          {0: stall(posted=_VOTED), 1: stall(posted=_VOTED), 2: stall(1, posted=_OLDER, view=2)},
          2,
      ),
      (
          "one_comes_that_nobody_waits_for_yet",
          {
              0: stall(posted=_VOTED),
              1: stall(),
              2: stall(posted=((4, "begun"),), view=0, is_waiting=True),
          },
          1,
      ),
      ("frozen_before_a_segment", {n: stall(segments=5 - (n == 1)) for n in range(3)}, 1),
      ("frozen_before_it_joins_a_ring", {0: stall(), 1: stall(segments=2)}, 0),
      ("a_connection_has_broken_in_silence", {n: stall(segments=5) for n in range(3)}, 2),
      ("on_purpose", {n: stall(is_waiting=True) for n in range(3)}, None),
  )
  def test_culprit(self, found, culprit):
    nobody = dict.fromkeys(range(max(2, len(found))))
    self.assertEqual(stalls_lib.find_culprit(nobody | found), culprit)
