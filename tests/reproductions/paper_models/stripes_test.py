from absl.testing import parameterized
import numpy as np

from bamboo_jax.data import source as source_lib


def make_stripes(**options):
  name = "bamboo_jax.reproductions.paper_models.stripes:make_stripes"
  return source_lib.make_source(name, **options)


class StripesTest(parameterized.TestCase):

  def test_samples_depend_on_seed_and_index_only(self):
    source = make_stripes(image_size=9)
    one = source.batch([5, 70, 6], seed=3)
    two = source.batch([6, 5], seed=3)
    for key, array in one.items():
      np.testing.assert_array_equal(array[[2, 0]], two[key])
    self.assertEqual(one["images"].shape, (3, 9, 9, 3))
    other = source.batch([5], seed=4)["images"]
    self.assertTrue((one["images"][0] != other[0]).any())

  def test_the_class_is_the_way_stripes_go(self):
    """Along them nothing changes: class 0 has columns, class 5 of 10 rows."""
    source = make_stripes(image_size=16, noise=0)
    arrays = source.batch(range(100), seed=0)
    for label, axis in ((0, 1), (5, 2)):
      images = arrays["images"][arrays["labels"] == label].astype(int)
      self.assertGreater(len(images), 2)
      self.assertFalse(np.diff(images, axis=axis).any())
      self.assertTrue(np.diff(images, axis=3 - axis).any((1, 2, 3)).all())

  def test_all_classes_come(self):
    source = make_stripes(image_size=2, num_classes=40)
    labels = source.heldout_batch(range(400))["labels"]
    self.assertCountEqual(np.unique(labels), range(40))

  @parameterized.parameters(
      ({"noise": 96}, "noise must be at least 0 and at most 95"),
      ({"num_classes": 0}, "num_classes must be at least 1"),
  )
  def test_bad_options(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      make_stripes(image_size=8, **options)
