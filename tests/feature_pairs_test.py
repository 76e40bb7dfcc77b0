"""Pairs of features are drawn alike each time, and cover every value."""

from absl.testing import parameterized

from tests import feature_pairs

_PAIRS = [feature_pairs.draw(1, number) for number in range(60)]
_BITS = feature_pairs.Outcome(0, "a" * 64, True)
_OTHER = feature_pairs.Outcome(0, "b" * 64, True)
_REFUSED = feature_pairs.Outcome(2, "error: config.a must be b.", False)
_ENDED = feature_pairs.Outcome(2, "error: Nothing is left.", True)
_CRASHED = feature_pairs.Outcome(1, "KeyError: 3", True)


class FeaturePairsTest(parameterized.TestCase):

  def test_a_pair_depends_on_seed_and_number_only(self):
    self.assertEqual(feature_pairs.draw(1, 7), _PAIRS[7])
    self.assertNotEqual(feature_pairs.draw(2, 7).options, _PAIRS[7].options)

  def test_sixty_pairs_have_every_value(self):
    wanted = {
        **feature_pairs.OPTIONS,
        "model.name": feature_pairs.MODELS,
        "model.options.lora_rank": [None, 2],
        "model.options.tied": [True, False],
        "model.options.documents": [None, True],
        "data.name": [
            source["data.name"]
            for sources in feature_pairs.SOURCES.values()
            for source in sources.values()
        ],
    }
    for name, values in wanted.items():
      drawn = {pair.options.get(name) for pair in _PAIRS}
      self.assertContainsSubset({*values}, drawn, msg=name)
    sizes = {
        (p.options["pipeline.num_pipelines"], p.options["pipeline.num_stages"]) for p in _PAIRS
    }
    self.assertEqual(sizes, {*feature_pairs.SIZES})
    self.assertEqual({p.resumes for p in _PAIRS}, {True, False})

  def test_two_nodes_die(self):
    for pair in _PAIRS:
      deaths = [line for line in pair.faults if not line.endswith("join")]
      self.assertLen(deaths, 2)
      self.assertLen(pair.with_joins().faults, 4)

  @parameterized.parameters(
      (_BITS, _BITS, "same"),
      (_BITS, _OTHER, "differs"),
      (_BITS, _ENDED, "differs"),
      (_REFUSED, _REFUSED, "refused"),
      (_REFUSED, _ENDED, "ended"),
      (_ENDED, _ENDED, "ended"),
      (_BITS, _CRASHED, "failed"),
      (_CRASHED, _REFUSED, "failed"),
  )
  def test_judge(self, local, cluster, want):
    self.assertEqual(feature_pairs.judge(local, cluster), want)
