from absl.testing import parameterized
import numpy as np
from PIL import Image

from bamboo_jax import base
from bamboo_jax.data import batches as batches_lib, source as source_lib
from tests import folders


class ImageFolderTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    for label, name in enumerate(("cat", "dog")):
      (self.folder / name).mkdir()
      for index in range(5):
        self.write(f"{name}/{index}.png", color=(50 * label, 40 * index, 200))

  def write(self, name, *, color, size=(12, 9)):
    pixels = np.full((size[1], size[0], 3), color, np.uint8)
    Image.fromarray(pixels).save(self.folder / name)

  def make(self, **options):
    options = {"path": str(self.folder), "image_size": 4} | options
    return source_lib.make_source(
        "bamboo_jax.reproductions.paper_models.image_folder:make_image_folder", **options
    )

  def colors(self, source, indices):
    arrays = source.batch(indices, seed=0)
    return arrays["images"]()[:, 0, 0].tolist(), arrays["labels"].tolist()

  def test_an_epoch_has_every_image_with_its_label_once(self):
    colors, labels = self.colors(self.make(heldout_fraction=0), range(10))
    self.assertEqual([c[0] for c in colors], [50 * label for label in labels])
    greens = sorted(zip(labels, (c[1] for c in colors), strict=True))
    self.assertEqual(greens, [(l, 40 * i) for l in (0, 1) for i in range(5)])

  def test_samples_depend_on_seed_and_index_only(self):
    rng = np.random.default_rng(0)
    for path in self.folder.glob("*/*.png"):
      noise = rng.integers(0, 256, (20, 30, 3)).astype(np.uint8)
      Image.fromarray(noise).save(path)
    source = self.make()
    images = source.batch([3, 14, 15], seed=1)["images"]()
    again = self.make().batch([15, 3], seed=1)["images"]()
    np.testing.assert_array_equal(images[[2, 0]], again)
    other = source.batch([3, 14, 15], seed=2)["images"]()
    self.assertFalse((images == other).all((1, 2, 3)).any())

  def test_the_next_epoch_cuts_out_other_pieces(self):
    ramp = np.arange(40 * 30 * 3).reshape(30, 40, 3).astype(np.uint8)
    for path in self.folder.glob("*/*.png"):
      Image.fromarray(ramp).save(path)
    source = self.make(heldout_fraction=0)
    images = source.batch(range(20), seed=0)["images"]()
    self.assertLen(np.unique(images, axis=0), 20)

  def test_images_of_one_pixel(self):
    for path in self.folder.glob("*/*.png"):
      self.write(path, color=(9, 8, 7), size=(1, 1))
    source = self.make(heldout_fraction=0.2)
    cut = source.batch(range(4), seed=0), source.heldout_batch([0, 1])
    for batch in cut:
      self.assertEqual(np.unique(batch["images"]()[..., 0]).tolist(), [9])

  def test_heldout_images_are_others(self):
    source = self.make(heldout_fraction=0.2)
    self.assertEqual((source.samples_per_epoch, source.num_heldout), (8, 2))
    arrays = source.heldout_batch([0, 1])
    self.assertEqual(arrays["images"]()[:, 0, 0, 1].tolist(), [160, 160])
    trained, _ = self.colors(source, range(8))
    self.assertNotIn(160, [c[1] for c in trained])

  def test_labels_need_no_image(self):
    (self.folder / "cat/0.png").write_bytes(b"no image")
    source = self.make(on_corrupt="stop", heldout_fraction=0)
    batches = batches_lib.Batches(source, seed=0, num_microbatches=1, microbatch_size=10)
    labels = batches.microbatch(0, 0, ("labels",))["labels"]
    self.assertCountEqual(labels, [0] * 5 + [1] * 5)
    with self.assertRaisesRegex(base.DataError, "cat/0.png"):
      batches.microbatch(0, 0)

  @parameterized.parameters("half", "huge")
  def test_the_next_of_its_class_replaces_a_corrupt_image(self, damage):
    source = self.make(heldout_fraction=0)
    place = int(np.flatnonzero(self.greens(source) == (1, 160))[0] // 2)
    path = self.folder / "dog/4.png"
    if damage == "half":
      good = path.read_bytes()
      path.write_bytes(good[: len(good) // 2])
    else:  # A size of 4 billion pixels.
      Image.new("RGB", (9, 9)).save(path, "jpeg")
      content = bytearray(path.read_bytes())
      size = content.index(b"\xff\xc0") + 5
      content[size : size + 4] = b"\xff" * 4
      path.write_bytes(content)
    with self.assertLogs(level="WARNING") as logs:
      colors, labels = self.colors(source, [place])
    self.assertEqual((colors[0], labels), ([50, 0, 200], [1]))
    self.assertIn("dog/4.png", logs.output[0])

  def test_none_replaces_a_file_that_the_system_cannot_read(self):
    source = self.make(heldout_fraction=0)
    (self.folder / "dog/4.png").unlink()  # Or the disk fails: others have it.
    with self.assertRaisesRegex(base.DataError, "dog/4.png: .* No such file"):
      self.colors(source, range(10))

  def greens(self, source):
    colors, labels = self.colors(source, range(10))
    return np.array([(l, c[1]) for c, l in zip(colors, labels, strict=True)])

  @parameterized.named_parameters(
      ("no_folder", {"path": "/no/such"}, "Cannot read /no/such"),
      ("too_many", {"num_classes": 1}, "has 2 classes, but num_classes=1"),
      ("setting", {"on_corrupt": "ignore"}, "on_corrupt 'ignore'"),
      ("fraction", {"heldout_fraction": 1.0}, "heldout_fraction must be"),
  )
  def test_bad_options(self, options, message):
    with self.assertRaisesRegex((ValueError, base.DataError), message):
      self.make(**options)

  def test_hidden_folders_are_no_classes(self):
    want = self.make().fingerprint
    for name in (".ipynb_checkpoints", "cat/deeper"):
      (self.folder / name).mkdir()
      self.write(f"{name}/0.png", color=(1, 2, 3))
    self.write("cat/.0.png", color=(1, 2, 3))
    self.write("above.png", color=(1, 2, 3))
    with self.assertLogs("absl", "WARNING") as logs:
      self.assertEqual(self.make().fingerprint, want)
    self.assertIn(
        f"Not read of {self.folder}: .ipynb_checkpoints, above.png, cat/.0.png " "and 1 more.",
        logs.output[0],
    )

  def test_a_class_without_images(self):
    for path in (self.folder / "cat").iterdir():
      path.write_bytes(b"")
    with self.assertRaisesRegex(base.DataError, "None of the images .*cat"):
      self.colors(self.make(), range(8))
    (self.folder / "emu").mkdir()
    with self.assertRaisesRegex(base.DataError, "class folder .*emu has no"):
      self.make()
