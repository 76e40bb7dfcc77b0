"""What a page says."""

from absl.testing import parameterized

from bamboo_jax.recovery import decide
from bamboo_jax.report.live import words

_DEATH = {"names": ["n5"], "victims": ["1/1"], "heirs": ["n4"], "rung": "shadow"}
_DEATH |= {"pause_secs": 0.52}
_STATE = {"step": 3, "num_steps": 9, "is_live": True, "has_agents": True, "lost": [], "pause": ""}


class WordsTest(parameterized.TestCase):

  @parameterized.parameters(
      (-1, "0 s"),
      (0.4, "0 s"),
      (59.6, "1 min"),
      (200, "3 min 20 s"),
      (3600, "1 h"),
      (7260, "2 h 1 min"),
      (3 * 86400 + 59, "3 d"),
      (3 * 86400 + 7200 + 59, "3 d 2 h"),
  )
  def test_times(self, secs, expected):
    self.assertEqual(words.describe_secs(secs), expected)

  @parameterized.parameters(
      ({}, "n5 (stage 1/1) died; its shadow n4 took over, 0.5 s"),
      ({"pause_secs": None}, "n5 (stage 1/1) died; its shadow n4 took over"),
      ({"rung": "reroute", "reason": "why"}, "n5 (stage 1/1) died; reroute: why, 0.5 s"),
  )
  def test_news(self, changes, expected):
    self.assertEqual(words.describe_news(_DEATH | changes), expected)

  @parameterized.parameters(
      ({}, "training"),
      ({"step": None}, "starting"),
      ({"step": 9, "pause": "saving step 9", "lost": ["n1"]}, "over"),
      ({"step": 9, "is_live": False}, "over"),
      ({"is_live": False}, "its log ends after step 3"),
      ({"step": None, "num_steps": None, "is_live": False}, "its log ends after step 0"),
      ({"has_agents": False, "lost": ["n1"]}, "not alive: no agent of it is there"),
      ({"pause": "waiting for 1 more to join"}, "paused: waiting for 1 more to join"),
      ({"lost": ["n1", "n2"], "pause": "why"}, "paused: n1 and n2 died"),
  )
  def test_states(self, changes, expected):
    self.assertEqual(words.find_state(**_STATE | changes), expected)

  @parameterized.parameters(
      ([], None),
      ([(1, 5.0)], None),
      ([(3, 5.0), (3, 6.0)], None),
      ([(1, 5.0), (3, 9.0)], 12.0),
      ([(1, 999.0), *((n, 1000.0 + n) for n in range(100, 103))], 0.0),
  )
  def test_time_left(self, points, expected):
    step = points[-1][0] if points else 0
    self.assertEqual(words.find_left_secs(points, step, 9), expected)
    self.assertIsNone(words.find_left_secs(points, step, None))

  @parameterized.parameters(
      ("mine", {"variant": "tiny"}, 2, 4, "mine, gpt2 tiny on text, 2 pipelines of 4 stages"),
      ("", {}, 1, 1, "gpt2 on text, 1 pipeline of 1 stage"),
  )
  def test_configs(self, name, options, pipelines, stages, expected):
    model = {"name": "gpt2", "options": options}
    config = {"name": name, "model": model, "data": {"name": "text"}}
    config["pipeline"] = {"num_pipelines": pipelines, "num_stages": stages}
    self.assertEqual(words.describe_config(config), expected)
    self.assertEqual(words.describe_config({}), "")

  def test_every_rung_has_words(self):
    self.assertEqual({*decide.RUNGS} - {*words.IF_LOST}, {"repair"})  # Between steps only.
