"""Where nodes stand, alive and dead."""

from absl.testing import absltest

from bamboo_jax.report.live import cards
from tests import members

_DEATH = {
    "step": 3,
    "nodes": [1],
    "names": ["n1"],
    "victims": ["0/1"],
    "heirs": ["n0"],
    "rung": "shadow",
    "pause_secs": 0.5,
}


def owner(name, *places):
  return cards.Card(name, "a", "owner", places)


def arrange(living, *recoveries, last_places=None, gone=()):
  met = {n: members.member(n, "b") for n in range(10)}
  dead = cards.find_dead(recoveries, met, living, last_places or {}, gone)
  return [(c["name"], c["row"], c["column"], c["text"]) for c in cards.arrange(living, dead)]


class CardsTest(absltest.TestCase):

  def test_the_dead_keep_their_place_until_it_is_taken(self):
    heir = owner("n0", "0/0", "0/1")
    said = "died in step 3; n0 took over, 0.5 s"
    self.assertEqual(
        arrange([heir], _DEATH), [("n0", "pipeline 0", 0, ""), ("n1", "pipeline 0", 1, said)]
    )
    taken = [owner("n0", "0/0"), owner("n2", "0/1")]
    self.assertEqual(
        arrange(taken, _DEATH),
        [("n0", "pipeline 0", 0, ""), ("n2", "pipeline 0", 1, ""), ("n1", "gone", None, said)],
    )

  def test_places_of_nodes_that_died_together(self):
    both = _DEATH | {"nodes": [1, 3], "names": ["n1", "n3"], "victims": ["1/1", "0/1"]}
    places = {1: ["0/1"], 3: ["1/1"]}
    got = arrange([owner("n0", "0/0"), owner("n2", "1/0")], both, last_places=places)
    self.assertEqual(
        [c[:3] for c in got[1:]], [(f"n{n}", f"pipeline {n // 2}", n % 2) for n in (1, 2, 3)]
    )

  def test_who_comes_again_is_not_dead(self):
    again = cards.Card("n1", "b", "spare", [])
    got = arrange([owner("n0", "0/0"), again], _DEATH, gone=[1])
    self.assertEqual([c[:2] for c in got], [("n0", "pipeline 0"), ("n1", "spares")])

  def test_a_death_that_is_not_dealt_with_yet(self):
    got = arrange([owner("n0", "0/0")], last_places={1: ["0/1"]}, gone=[1])
    self.assertEqual(got[1], ("n1", "pipeline 0", 1, "gone"))

  def test_only_the_last_dead_are_shown(self):
    many = [_DEATH | {"step": n, "nodes": [n], "names": [f"n{n}"]} for n in range(1, 10)]
    got = arrange([owner("n0", "0/0", "0/1")], *many)
    self.assertEqual([c[0] for c in got], ["n0", "n9", "n8", "n7", "n6", "n5", "n4", "n3"])
