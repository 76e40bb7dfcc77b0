import subprocess
import sys

import numpy as np

from bamboo_jax.metrics import plots
from bamboo_jax.metrics import slot as slot_lib
from tests import folders

Slot = slot_lib.Slot
_SLOTS = (
    Slot("node 0", "0F0", 0.0, 1.0, "forward"),
    Slot("node 0", "0B0", 3.0, 5.0, "backward"),
    Slot("node 1", "1F0", 1.0, 2.0, "forward"),
)


# Drawing takes a few tenths of a second, and matplotlib lists the machine's
# fonts when it is imported for the first time, which takes seconds.
class PlotsTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.path = self.folder / "plot.png"

  def _has_colour(self, colour):
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    pixels = self._read_pixels()[..., :3]
    return bool(np.any(np.all(np.abs(pixels - rgb) < 0.01, axis=-1)))

  def _read_pixels(self):
    from matplotlib import image

    return image.imread(self.path)

  def test_loss(self):
    train = ([1, 2, 3], [3.0, 2.0, 1.5])
    plots.plot_loss(self.path, train=train)
    self.assertTrue(self._has_colour("#0072B2"))
    self.assertFalse(self._has_colour("#D55E00"))
    plots.plot_loss(self.path, train=train, evaluation=([2], [2.2]))
    self.assertTrue(self._has_colour("#D55E00"))

  def test_schedule_has_a_colour_for_each_category(self):
    plots.plot_schedule(self.path, planned=_SLOTS, measured=_SLOTS[:1])
    self.assertTrue(self._has_colour("#56B4E9"))
    self.assertTrue(self._has_colour("#0072B2"))
    self.assertFalse(self._has_colour("#E69F00"))

  def test_parts_and_tracks_make_the_figure_taller(self):
    heights = []
    for parts in (
        dict(planned=_SLOTS[:1]),
        dict(measured=_SLOTS),
        dict(planned=_SLOTS, measured=_SLOTS),
    ):
      plots.plot_schedule(self.path, **parts)
      heights.append(self._read_pixels().shape[0])
    self.assertEqual(heights, sorted(set(heights)))

  def test_nothing_to_draw(self):
    with self.assertRaisesRegex(ValueError, "planned or measured"):
      plots.plot_schedule(self.path)
    self.assertFalse(self.path.exists())

  def test_metrics_import_neither_matplotlib_nor_jax(self):
    # A process of its own, because this one has imported both.
    code = """import sys
from bamboo_jax.metrics import chrome_trace, jsonl, plots, progress, slot
from bamboo_jax.metrics import summary, tensorboard
slow = {"matplotlib", "jax", "tensorboardX"} & set(sys.modules)
sys.exit(", ".join(slow) or 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
