"""Who is left out because of what members suspect."""

import copy
import random

from absl.testing import parameterized

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import suspicion


def explain(edges, *, now, members="abcde", quiet=""):
  """`edges` are written accuser, accused, since when; `!` if it is certain."""
  found = suspicion.Suspicions("a")
  said = {}
  for text in edges:
    by, whom, since_secs = text.strip("!").split()
    suspect = messages.Suspect(whom, "why", text.endswith("!"))
    said.setdefault(by, []).append(suspect)
    found.note(by, said[by], count=len(said[by]), now=float(since_secs))
  return "".join(found.explain(list(members), now=now, quiet=quiet))


def find_sure(edges, mended, now):
  """Of the members that `a` suspects, those that most others accuse, after a mend anew."""
  own = {w for by, w in edges if by == "a"}
  counts = {e for e, secs in edges.items() if secs >= mended[e[0]] or now >= mended[e[0]] + 1}
  witnesses = {*"abcdef"} - own
  return {w for w in own if 2 * sum((by, w) in counts for by in witnesses) > len(witnesses)}


class SuspicionTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("nobody_yet", ["a b 0.6"], ""),
      ("of_a_link_the_later_end", ["b c 0", "c b 0"], "c"),
      ("who_is_cut_off", ["c b 0", "d b 0", "e b 0.9", "a b 0.9"], "b"),
      ("itself", ["a b 0", "a c 0.5", "d a 0.5"], "a"),
      ("most_are_certain", [f"{by} e 1.4!" for by in "abc"], "e"),
      ("one_alone_is_certain", ["a e 0!"], ""),
      ("not_whose_link_may_heal", ["a d 0", "b c 0.9", "c b 0.9"], "d"),
  )
  def test_explain(self, edges, out):
    self.assertEqual(explain(edges, now=1.5), out)

  @parameterized.parameters((3.1, ""), (4.0, "e"))
  def test_a_refusal_that_may_pass_is_no_reason_yet(self, now, out):
    edges = ["e c 0!", "c e 0!", "a e 1!", "e a 1!"]
    self.assertEqual(explain(edges, now=now, quiet="ce"), out)

  def test_a_link_of_who_is_quiet_is_no_reason_yet(self):
    edges = ["c b 0!", "b c 0!"]
    self.assertEqual(explain(edges, now=3.1, quiet="c"), "")
    self.assertEqual(explain([*edges, "a c 3.0"], now=3.1, quiet="c"), "c")
    self.assertEqual(explain(edges, now=3.1), "c")

  def test_who_was_away_waits_once_more(self):
    found = suspicion.Suspicions("a")
    found.note("a", [messages.Suspect("b", "why", True)], count=1, now=0.0)
    found.wait_again(2.5)
    self.assertEqual(found.explain(list("abc"), now=5.4), {})
    self.assertEqual(found.explain(list("abc"), now=5.5), {"b": "why"})
    self.assertEqual(found.of("a")["b"].first_secs, 0.0)

  def test_who_is_quiet_is_not_left_out_beside_another(self):
    edges = [f"{by} e 0" for by in "abcd"]
    self.assertEqual(explain(edges, now=1.5, quiet="be"), "e")

  @parameterized.parameters((10.0, ""), (13.0, "cde"))
  def test_who_has_links_that_may_heal_is_not_to_blame_for_the_dead(self, now, out):
    # `b` was cut off and is back; `d` and `e` are dead.
    edges = ["c d 0", "c e 0!", "c b 9.8", "b d 9.8", "a d 9.8", "a e 9.8!"]
    self.assertEqual(explain(edges, now=now, members="bacde"), out)

  @parameterized.parameters(
      ("b", ""), ("c", "d")  # Nothing mends at either end of the link of `d` to `b`.
  )
  def test_others_wait_when_one_is_taken_back(self, whom, out):
    found = suspicion.Suspicions("a")
    suspect = lambda who: messages.Suspect(who, "why", False)
    found.note("d", [suspect("b")], count=1, now=0.0)
    found.note("a", [suspect(whom)], count=1, now=0.0)
    found.note("a", [], count=2, now=1.0)
    explain_at = lambda now: "".join(found.explain(list("abcd"), now=now))
    self.assertEqual(explain_at(1.7), out)
    self.assertEqual(explain_at(2.0), "d")

  @parameterized.parameters((4.5, ""), (5.0, "d"))
  def test_what_was_said_before_a_link_mended_is_said_again(self, now, out):
    """All links were refused until 4.0, when `a` and `b` meet again; `d` is dead."""
    everybody = [messages.Suspect(who, "why", True) for who in "abcd"]
    found = suspicion.Suspicions("a")
    for by in "abc":
      found.note(by, [s for s in everybody if s.incarnation != by], count=1, now=0.0)
    found.note("a", everybody[3:], count=2, now=4.0)
    found.note("b", everybody[3:], count=2, now=4.0)
    self.assertEqual("".join(found.explain(list("abcd"), now=now)), out)

  def test_what_is_said_after_a_link_mended_counts_at_once(self):
    found = suspicion.Suspicions("a")
    dead = [messages.Suspect(who, "why", True) for who in "bd"]
    found.note("a", dead[:1], count=1, now=0.0)
    found.note("a", [], count=2, now=4.0)
    for by in "abc":
      found.note(by, dead[1:], count=3, now=4.1)
    self.assertEqual("".join(found.explain(list("abcd"), now=4.1)), "d")

  def test_who_is_left_out_mends_nothing(self):
    found = suspicion.Suspicions("a")
    gone, other = (messages.Suspect(who, "why", False) for who in "ed")
    found.note("b", [gone, other], count=1, now=0.0)
    found.drop("e")
    found.note("b", [other], count=2, now=1.0)
    self.assertEqual([*found.explain(list("abcd"), now=1.2)], ["d"])

  @parameterized.parameters(*range(20))
  def test_what_is_looked_at_before_does_not_matter(self, seed):
    chance = random.Random(seed)
    found = suspicion.Suspicions("a")
    edges, now = {}, 0.0  # Those certain, by accuser and accused.
    mended = dict.fromkeys("abcdef", float("-inf"))
    for count in range(60):
      now += chance.choice([0.0, 0.3, 0.6])
      by = chance.choice("aabcdef")
      if chance.random() < 0.1 and by != "a":
        found.drop(by)
        mended[by] = float("-inf")
        edges = {ends: secs for ends, secs in edges.items() if by not in ends}
      else:
        said = chance.sample("bcdef", chance.randrange(4))
        suspects = [messages.Suspect(whom, "why", True) for whom in said]
        found.note(by, suspects, count=count, now=now)
        fresh = {(by, w): edges.get((by, w), now) for w in said}
        others = {ends: s for ends, s in edges.items() if ends[0] != by}
        if back := edges.keys() - others.keys() - fresh.keys():
          mended |= dict.fromkeys([by, *(whom for _, whom in back)], now)
        edges = others | fresh
      # Nobody who waits follows; it may be that all wait.
      out = found.explain("abcdef", now=now).keys()
      self.assertContainsSubset(find_sure(edges, mended, now), out)
      late = copy.deepcopy(found)
      late.wait_again(now)
      sure = find_sure(edges, dict.fromkeys("abcdef", now), now)
      self.assertEqual(late.explain("abcdef", now=now).keys(), sure)

  def test_who_was_found_to_wait_is_due_in_the_end(self):
    found = suspicion.Suspicions("a")
    dead = [messages.Suspect(whom, "why", True) for whom in "bc"]
    found.note("d", dead[:1], count=1, now=0.0)
    found.wait_again(2.0, ends={"d"})
    for now, out in ((2.9, []), (4.9, []), (5.0, ["d"])):
      self.assertEqual([*found.explain(list("abcd"), now=now)], out)
    found.note("c", dead[1:], count=1, now=5.0)
    found.note("b", dead[1:], count=1, now=5.0)
    self.assertEqual([*found.explain(list("abc"), now=7.9)], [])
    self.assertEqual([*found.explain(list("abc"), now=8.0)], ["c"])
