"""If nothing goes on, the one is blamed that waits for nobody."""

import itertools

from absl.testing import parameterized

from bamboo_jax.cluster import stalls as stalls_lib
from bamboo_jax.schedule import channel as channel_lib
from tests import members


def stall(channels=(), posted=((3, "begun"),), *, view=3, step=7, is_waiting=False):
  return stalls_lib.Stall(
      is_waiting,
      view,
      channel_lib.Begun((3, step), tuple(map(members.channel, channels))),
      tuple(posted),
  )


_VOTED = ((3, "begun"), (3, "vote 7"))
_OLDER = ((2, "begun"), (2, "vote 6"))


class StallsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("somebody_works", {1: stall(["f@0,1"])}, None),
      ("frozen_before_a_transfer", {0: stall(["f@0,1"]), 1: stall(), 2: stall(["b@2,1"])}, 1),
      ("in_a_chain_the_last_link", {0: stall(["f@0,1"]), 1: stall(["f@2,1"]), 2: stall()}, 2),
      ("frozen_before_a_vote", {0: stall(posted=_VOTED), 1: stall(), 2: stall(posted=_VOTED)}, 1),
      (
          "frozen_before_it_adopted_the_view",
          {
              0: stall(posted=_VOTED),
              1: stall(posted=_VOTED),
              2: stall(["f@2,1"], posted=_OLDER, view=2, step=6),
          },
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
      (
          "a_connection_has_broken_in_silence",
          {0: stall(["f@0,1"]), 1: stall(["f@0,1"]), 2: stall(["b@2,1"])},
          1,
      ),
      (
          "one_that_is_a_step_ahead_is_not_waited_for",
          {0: stall(["f@0,1"], posted=_VOTED), 1: stall(["f@1,0"], posted=_VOTED, step=8)},
          0,
      ),
      ("on_purpose", {n: stall(is_waiting=True) for n in range(3)}, None),
  )
  def test_culprit(self, found, culprit):
    nobody = dict.fromkeys(range(max(2, len(found))))
    self.assertEqual(stalls_lib.find_culprit(nobody | found), culprit)

  def test_whoever_hangs_in_a_chain_of_transfers(self):
    # Each node begins its transfers in one order of all; one stops somewhere,
    # and every other as soon as it has begun what the other end has not.
    order = ["f@0,1", "f@1,2", "f@0,1", "g@2,1", "f@1,2", "g@1,0", "g@2,1"]
    for victim, count in itertools.product(range(3), range(4)):
      begun = {n: [] for n in range(3)}
      rows = {n: [c for c in order if n in members.channel(c).nodes] for n in range(3)}
      while True:
        before = {n: len(b) for n, b in begun.items()}
        for n, row in rows.items():
          is_level = all(
              begun[m].count(c) >= begun[n].count(c)
              for c in set(begun[n])
              for m in members.channel(c).nodes
          )
          limit = count if n == victim else len(row)
          if is_level and len(begun[n]) < limit:
            begun[n].append(row[len(begun[n])])
        if before == {n: len(b) for n, b in begun.items()}:
          break
      if count >= len(rows[victim]):
        continue
      found = {n: stall(b) for n, b in begun.items()}
      for n in range(3):  # Who has done all has voted.
        if len(begun[n]) == len(rows[n]):
          found[n] = stall(begun[n], posted=_VOTED)
      self.assertEqual(stalls_lib.find_culprit(found), victim, msg=(victim, count))
