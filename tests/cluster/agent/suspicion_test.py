"""Who is left out because of what members suspect."""

from absl.testing import parameterized

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import suspicion


class SuspicionTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("nobody_yet", "0.6 a b; 1.5 ="),
      ("of_a_link_the_later_end", "0 b c; 0 c b; 1.5 = c"),
      ("who_is_cut_off", "0 c b; 0 d b; 0.9 e b; 0.9 a b; 1.5 = b"),
      ("itself", "0 a b; 0.5 a b c; 0.5 d a; 1.5 = a"),
      ("most_are_certain", "1.4 a e!; 1.4 b e!; 1.4 c e!; 1.5 = e"),
      ("one_alone_is_certain", "0 a e!; 1.5 ="),
      ("not_whom_only_others_accuse", "0 x b!; 0 y b!; 0 z b!; 4.0 ="),
      ("not_whose_link_may_heal", "0 a d; 0.9 b c; 0.9 c b; 1.5 = d"),
      (
          "a_refusal_that_may_pass_is_no_reason_yet",
          "0 e c!; 0 c e!; 1 a e!; 1 e c! a!; 3.1 =; 4.0 = e",
          "abcde",
          "ce",
      ),
      ("a_link", "0 c b!; 0 b c!; 3.1 = c"),
      ("a_link_of_who_is_quiet_is_no_reason_yet", "0 c b!; 0 b c!; 3.1 =", "abcde", "c"),
      ("of_who_is_suspected_here", "0 c b!; 0 b c!; 3 a c; 3.1 = c", "abcde", "c"),
      ("who_is_quiet_is_no_witness", "0 a d!; 0 b d!; 0 c d!; 0.1 =", "abcd", "bc"),
      ("two_of_three_witnesses_are_enough", "0 a d!; 0 b d!; 0 c d!; 0.1 = d", "abcd", "c"),
      ("who_was_away_waits_once_more", "0 a b!; 2.5 away; 3.4 =; 3.5 = b", "abc"),
      (
          "who_is_quiet_is_not_left_out_beside_another",
          "0 a e; 0 b e; 0 c e; 0 d e; 1.5 = e",
          "abcde",
          "be",
      ),
      ("itself_while_it_hears_none", "0 a c; 0 b c; 1.5 = a", "abc", "bc"),
      ("another_once_it_hears_one", "0 a c; 0 b c; 1.5 = c", "abc", "c"),
      (  # `b` was cut off and is back; `d` and `e` are dead.
          "who_has_links_that_may_heal_is_not_to_blame_for_the_dead",
          "0 c d e!; 9.8 c d e! b; 9.8 b d; 9.8 a d e!; 10.0 =; 13.0 = c d e",
          "bacde",
      ),
      ("others_wait_when_one_is_taken_back", "0 d b; 0 a b; 1 a; 1.7 =; 2.9 =; 3.0 = d", "abcd"),
      (  # `a` may be the one that is cut off.
          "a_death_waits_while_others_do_not_confirm_what_is_refused_here",
          "0 a b! c! d!; 0 e d!; 0.9 =; 1.0 = d; 1.1 e b! c! d!; 1.1 = b c d",
          "abcde",
      ),
      # Nothing mends at either end of the link of `d` to `b`.
      ("others_do_not", "0 d b; 0 a c; 1 a; 1.7 = d; 2.0 = d", "abcd"),
      (  # All links were refused until 4.0, when `a` and `b` meet again; `d` is dead.
          "what_was_said_before_a_link_mended_is_said_again",
          "0 a b! c! d!; 0 b a! c! d!; 0 c a! b! d!; 4 a d!; 4 b d!; 4.5 =; 5.0 = d",
          "abcd",
      ),
      (
          "what_is_said_after_a_link_mended_counts_a_second_later",
          "0 a b!; 4 a; 4.1 a d!; 4.1 b d!; 4.1 c d!; 4.9 =; 5.0 = d",
          "abcd",
      ),
      ("who_is_left_out_accuses_nobody", "0 a e!; 0 b e!; 0.5 drop b; 0.6 =", "acde"),
      ("who_is_left_out_mends_nothing", "0 b e d; 0 drop e; 1 b d; 1.2 = d", "abcd"),
      (
          "who_was_found_to_wait_is_due_in_the_end",
          "0 d b!; 2.5 away d; 2.9 =; 3.4 =; 3.5 = d; 5 d; 5 c c!; 5 b c!; 7.9 =; 8.0 = c",
          "abcd",
      ),
  )
  def test_explain(self, course, members="abcde", quiet=""):
    """Of each accuser all whom it suspects from a time on, with `!` if it is certain."""
    found = suspicion.Suspicions("a")
    for count, line in enumerate(course.split(";")):
      secs, who, *what = line.split()
      now = float(secs)
      if who == "=":
        out = found.explain(list(members), now=now, quiet=quiet)
        self.assertEqual([*out], what, msg=line)
      elif who == "away":
        found.wait_again(now, who="".join(what))
      elif who == "drop":
        found.drop(*what)
      else:
        said = [messages.Suspect(w.strip("!"), "why", w.endswith("!")) for w in what]
        found.note(who, said, count=count, now=now)
