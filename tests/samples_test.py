"""Samples of sweeps."""

from unittest import mock

from absl.testing import parameterized

from tests import samples


class SamplesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.dict("os.environ"))

  def test_a_sample_depends_on_the_seed_and_the_topic(self):
    found = set()
    for seed, topic in (("7", ""), ("7", "a"), ("8", "")):
      samples.choose(seed, is_all=False)
      self.assertEqual(samples.describe(), f"sweeps: --sample={seed}")
      drawn = samples.draw(range(100), 10, topic=topic)
      self.assertEqual(drawn, samples.draw(range(100), 10, topic=topic))
      self.assertEqual(drawn, sorted({*drawn}))
      self.assertLen(drawn, 10)
      found.add((*drawn,))
    self.assertLen(found, 3)

  @parameterized.parameters("seven", "-1", "0.5")
  def test_a_seed_that_is_no_number(self, seed):
    with self.assertRaisesRegex(ValueError, f"--sample must be a number, .* got '{seed}'"):
      samples.choose(seed, is_all=False)

  def test_whole_sweeps(self):
    samples.choose("7", is_all=True)
    self.assertEqual(samples.describe(), "sweeps: --all")
    self.assertEqual(samples.draw("abc", 1), ["a", "b", "c"])
