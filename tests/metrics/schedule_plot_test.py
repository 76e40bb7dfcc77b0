"""The figure of a step: panels, labels that fit their boxes, and their key."""

from absl.testing import parameterized
from matplotlib import colors

from bamboo_jax.metrics import schedule_plot, slot as slot_lib
from tests import figures

TrackSlot = slot_lib.TrackSlot
_SLOTS = (
    TrackSlot("node 0", "0F0", 0.0, 1.0, "forward", "forward pass of 0"),
    TrackSlot("node 0", "0F1", 1.0, 2.0, "forward", "forward pass of 1"),
    TrackSlot("node 0", "0B0", 3.0, 5.0, "backward", "backward pass"),
    TrackSlot("node 1", "0RA0<0", 1.0, 2.0, "transfer", "output received"),
    TrackSlot("node 1", "0RG0<0", 2.0, 3.0, "transfer", "gradient received"),
)


def _draw(planned=(), measured=(), title="Step 7"):
  return schedule_plot.draw_schedule(title, planned=planned, measured=measured)


def _key(fig):
  (legend,) = fig.legends
  return [
      (text.get_text(), colors.to_hex(patch.get_facecolor()).upper())
      for text, patch in zip(legend.texts, legend.get_patches(), strict=True)
  ]


class SchedulePlotTest(parameterized.TestCase):

  def test_key_has_a_label_of_each_form(self):
    """A category whose labels do not fit, or that has none, has its name."""
    narrow = TrackSlot("node 0", "0SG0>1", 5.0, 5.001, "send", "gradient sent")
    other = TrackSlot("node 1", "?", 4.0, 5.0, "odd")
    fig = _draw((*_SLOTS, narrow), (*_SLOTS, other))
    self.assertEqual(
        _key(fig),
        [
            ("0F0: forward pass of 0", "#56B4E9"),
            ("0B0: backward pass", "#0072B2"),
            ("0RA0<0: output received", "#E69F00"),
            ("0RG0<0: gradient received", "#E69F00"),
            ("odd", "#F0E442"),
            ("send", "#5F4690"),
        ],
    )
    self.assertEqual(fig.get_suptitle(), "Step 7")
    self.assertEmpty(figures.find_faults(fig))

  def test_labels_lie_in_their_boxes(self):
    # From far too narrow to wide: left out, upright, level.
    slots, start = [], 0.0
    for i in range(60):
      slots.append(TrackSlot("node 0", f"{i}RF0", start, start + 0.01 * i, "forward"))
      start += 0.01 * i
    fig = _draw(slots)
    fig.draw_without_rendering()
    (axes,) = fig.axes
    to_pixels = axes.transData.transform
    by_name = {slot.name: slot for slot in slots}
    angles = [text.get_rotation() for text in axes.texts]
    self.assertEqual(angles, sorted(angles, reverse=True))
    self.assertEqual({*angles}, {0.0, 90.0})
    self.assertLess(len(angles), len(slots))
    for text in axes.texts:
      slot, box = by_name[text.get_text()], text.get_window_extent()
      (left, low), (right, high) = to_pixels([(slot.start_ms, 0.45), (slot.end_ms, -0.45)])
      self.assertBetween(box.x0, left - 1, right, text)
      self.assertBetween(box.x1, left, right + 1, text)
      self.assertBetween(box.y0, low - 1, high, text)
      self.assertBetween(box.y1, low, high + 1, text)

  def test_panels_share_time_and_grow_with_tracks(self):
    heights = []
    for parts in (
        dict(planned=_SLOTS[:1]),
        dict(measured=_SLOTS),
        dict(planned=_SLOTS, measured=_SLOTS),
    ):
      fig = _draw(**parts)
      self.assertLen(fig.axes, len(parts))
      self.assertLen({axes.get_xlim() for axes in fig.axes}, 1)
      self.assertIn("(ms)", fig.axes[-1].get_xlabel())
      heights.append(fig.get_figheight())
    self.assertEqual(heights, sorted(set(heights)))
    self.assertEqual(
        [axes.get_title(loc="left") for axes in fig.axes], ["planned, 5.0 ms", "measured, 5.0 ms"]
    )

  def test_parts_that_are_not_alike_have_scales_of_their_own(self):
    for factor, num_scales in ((2.9, 1), (3.1, 2)):
      slow = [TrackSlot(s.track, s.name, factor * s.start_ms, factor * s.end_ms) for s in _SLOTS]
      fig = _draw(_SLOTS, slow)
      self.assertLen({axes.get_xlim() for axes in fig.axes}, num_scales)
      titles = [axes.get_title(loc="left") for axes in fig.axes]
      for title in titles:
        self.assertEqual("on its own scale" in title, num_scales == 2, title)
      self.assertEmpty(figures.find_faults(fig))

  def test_says_that_rows_are_missing(self):
    fig = _draw(_SLOTS, _SLOTS[2:3])
    self.assertEqual(
        [axes.get_title(loc="left") for axes in fig.axes],
        ["planned, 5.0 ms", "measured, 5.0 ms; a process knows the times of its own nodes only"],
    )

  def test_rows_are_in_the_order_of_the_plan(self):
    names = ["n2", "n0", "n1"]
    planned = [TrackSlot(name, "0F0", 0.0, 1.0) for name in names]
    fig = _draw(planned, planned[::-1])
    for axes in fig.axes:
      self.assertEqual([text.get_text() for text in axes.get_yticklabels()], names)

  def test_nothing_to_draw(self):
    with self.assertRaisesRegex(ValueError, "planned or measured"):
      _draw()
