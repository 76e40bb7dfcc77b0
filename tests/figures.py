"""Checks of a Matplotlib figure as it is drawn: nothing cut, nothing on top."""

import itertools

from matplotlib import text as text_lib

_ROUNDING = 1.0  # Pixels.


def visible_texts(fig):
  """Returns the texts that are drawn and their boxes, in pixels."""
  fig.draw_without_rendering()
  texts = [*fig.texts, *_of_legends(fig.legends)]
  if fig._suptitle:
    texts.append(fig._suptitle)
  for axes in fig.axes:
    if not axes.axison:
      continue
    texts += [axes.title, axes._left_title, axes._right_title, *axes.texts]
    texts += _of_legends([axes.get_legend()] if axes.get_legend() else [])
    for axis in (axes.xaxis, axes.yaxis):
      texts += [axis.label, axis.get_offset_text()]
      texts += [tick.label1 for tick in axis._update_ticks()]
  unique = {id(t): t for t in texts if t.get_visible() and t.get_text().strip()}
  # That of an annotation would have its line, too.
  box_of = text_lib.Text.get_window_extent
  return [(t, box_of(t)) for t in unique.values()]


def _of_legends(legends):
  return [text for legend in legends for text in legend.get_texts()]


def find_faults(fig):
  """Returns up to 9 lines, one for each problem of a figure."""
  texts, faults = visible_texts(fig), []
  whole = fig.bbox.padded(_ROUNDING)
  boxes = [(f"text {t.get_text()!r}", box) for t, box in texts]
  boxes += [("legend", legend.get_window_extent()) for legend in fig.legends]
  for what, box in boxes:
    if not (whole.contains(*box.min) and whole.contains(*box.max)):
      faults.append(f"{what} is cut")
  for (a, box), (b, other) in itertools.combinations(texts, 2):
    if box.padded(-_ROUNDING).overlaps(other.padded(-_ROUNDING)):
      faults.append(f"{a.get_text()!r} and {b.get_text()!r} overlap")
  return faults[:9]
