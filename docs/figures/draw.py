"""Draws the pictures of the concepts: python docs/figures/draw.py.

Rows of a step are those that the scheduler makes, for equal stages whose
backward passes take twice as long as forward passes. `tests/docs_site_test.py`
compares the files with what this makes.
"""

from collections.abc import Mapping, Sequence
import html
import pathlib
import sys

_FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_FOLDER.parents[1]))

from bamboo_jax import config as config_lib  # noqa: E402
from bamboo_jax.metrics import palette  # noqa: E402
from bamboo_jax.plan import rows as rows_lib  # noqa: E402
from bamboo_jax.schedule import (  # noqa: E402
    costs as costs_lib,
    failover,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    simulate as simulate_lib,
    timeline as timeline_lib,
)

Op = instruction_lib.Op
Slots = Mapping[int, Sequence[timeline_lib.Slot]]

_STAGES, _MICROBATCHES, _VICTIM, _DIED_MS = 4, 6, 2, 12.0
_FORWARD, _BACKWARD, _REDUNDANT = (
    palette.PASSES[name].light for name in ("forward", "backward", "redundant")
)
_OWED = palette.KINDS["recovery"].light
_DEAD, _INK, _GREY, _WHITE = "#c0392b", "#222222", "#e6e6e6", "#ffffff"


class Drawing:
  """An SVG; sizes are pixels."""

  def __init__(self, width: float, height: float) -> None:
    self._size = f"{width:g} {height:g}"
    self._parts = []
    self.box(0, 0, width, height, _WHITE, stroke="none")

  def box(
      self,
      x: float,
      y: float,
      width: float,
      height: float,
      fill: str,
      *,
      stroke: str = "#555",
      text: str = "",
      size: int = 12,
  ) -> None:
    """Adds a rectangle, with a text in its middle."""
    self._parts.append(
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="0.8" rx="3"/>'
    )
    lines = text.split("\n") if text else []
    for index, line in enumerate(lines):
      down = (index - (len(lines) - 1) / 2) * (size + 4) + size * 0.35
      middle = y + height / 2 + down
      ink = _INK if palette.ink(fill) == "black" else _WHITE
      self.text(x + width / 2, middle, line, anchor="middle", size=size, fill=ink)

  def text(
      self,
      x: float,
      y: float,
      text: str,
      *,
      anchor: str = "start",
      size: int = 12,
      fill: str = _INK,
      bold: bool = False,
  ) -> None:
    """Adds a line of text whose baseline is at `y`."""
    weight = ' font-weight="bold"' if bold else ""
    self._parts.append(
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}"{weight}>{html.escape(text)}</text>'
    )

  def line(
      self,
      start: tuple[float, float],
      end: tuple[float, float],
      *,
      colour: str = "#555",
      arrow: bool = True,
      dashed: bool = False,
  ) -> None:
    """Adds a line, by default an arrow."""
    head = ' marker-end="url(#head)"' if arrow else ""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    self._parts.append(
        f'<line x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" '
        f'y2="{end[1]:g}" stroke="{colour}" stroke-width="1.4"{head}{dashes}/>'
    )

  def __str__(self) -> str:
    """Returns the file."""
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {self._size}" '
            'font-family="Helvetica, Arial, sans-serif">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
            *self._parts,
            "</svg>\n",
        ]
    )


def draw_step() -> Drawing:
  """Draws a step, and the same step with a death in it."""
  whole, rest = _plan_step()
  drawing = Drawing(900, 430)
  x, wide = 90, 900 - 120
  scale = wide / (_DIED_MS + max(s.end_ms for r in rest.values() for s in r))
  drawing.text(14, 24, "A step of a pipeline with 4 stages", size=15, bold=True)
  _draw_rows(drawing, whole, x, 36, scale)
  drawing.text(14, 214, "The same step: node 2 dies", size=15, bold=True)
  before = {n: [s for s in r if s.end_ms <= _DIED_MS] for n, r in whole.items()}
  _draw_rows(drawing, before, x, 226, scale)
  _draw_rows(drawing, rest, x + _DIED_MS * scale, 226, scale, owed=_VICTIM)
  died = x + _DIED_MS * scale
  top = 226 + _VICTIM * 36
  drawing.box(died + 1, top, wide - _DIED_MS * scale, 30, _GREY, stroke="none")
  drawing.text(died + 10, top + 20, "dead", fill=_DEAD, bold=True)
  drawing.line((died, 220), (died, 372), colour=_DEAD, arrow=False, dashed=True)
  legend = (
      (_FORWARD, "forward pass"),
      (_BACKWARD, "backward pass"),
      (_REDUNDANT, "redundant forward pass of the next stage"),
      (_OWED, "passes of stage 2, owed by its shadow"),
  )
  left = 14
  for colour, text in legend:
    drawing.box(left, 396, 16, 16, colour)
    drawing.text(left + 22, 409, text)
    left += 60 + 6.6 * len(text)
  return drawing


def _plan_step() -> tuple[Slots, Slots]:
  """Returns the rows of a step, and those that finish it after the death."""
  roles = failover.Roles.initial(range(_STAGES))
  costs = costs_lib.StageCosts(
      forward_ms=(1.0,) * _STAGES, backward_ms=(2.0,) * _STAGES, transfer_ms=(0.0,) * (_STAGES - 1)
  )
  bounds = lines_lib.in_flight_limits(_STAGES)
  eager = config_lib.RedundancySection("eager")
  line = lines_lib.Line(roles.owners, range(_MICROBATCHES), bounds)
  whole = rows_lib.plan_rows(eager, line, roles.shadows, costs=costs).timeline.rows
  held = {
      node: holdings_lib.after(s.instruction for s in row if s.end_ms <= _DIED_MS)
      for node, row in whole.items()
  }
  roles, _ = failover.fail_over(roles, {_VICTIM})
  held = failover.find_valid(roles, held)
  lines = [lines_lib.Line(roles.owners, range(_MICROBATCHES), bounds)]
  return whole, simulate_lib.simulate(lines, costs=costs, holdings=held).rows


def _draw_rows(
    drawing: Drawing, rows: Slots, x: float, y: float, scale: float, *, owed: int | None = None
) -> None:
  """Draws the passes of each node; those of the stage `owed` stand out."""
  colours = {Op.FORWARD: _FORWARD, Op.BACKWARD: _BACKWARD, Op.REDUNDANT_FORWARD: _REDUNDANT}
  for node, row in rows.items():
    top = y + node * 36
    if owed is None:
      drawing.text(14, top + 20, f"node {node}")
    for slot in row:
      pass_ = slot.instruction
      if pass_.op in colours:
        colour = _OWED if pass_.stage == owed else colours[pass_.op]
        drawing.box(
            x + slot.start_ms * scale,
            top,
            (slot.end_ms - slot.start_ms) * scale,
            30,
            colour,
            text=str(pass_.microbatch),
        )


def draw_redundancy() -> Drawing:
  """Draws who holds what, before and after a death."""
  drawing = Drawing(900, 300)
  for top, dead, title in (
      (0, None, "Each node owns a stage, and holds a replica of the next one"),
      (150, 2, "Node 2 dies: its shadow, node 1, owns stage 2 as well"),
  ):
    drawing.text(14, top + 24, title, size=15, bold=True)
    for node in range(_STAGES):
      left = 20 + node * 220
      is_dead = node == dead
      drawing.box(left, top + 40, 190, 92, _GREY if is_dead else _WHITE)
      colour = _DEAD if is_dead else _INK
      label = f"node {node}" + (", dead" if is_dead else "")
      drawing.text(left + 95, top + 58, label, anchor="middle", fill=colour)
      if is_dead:
        continue
      drawing.box(left + 10, top + 68, 80, 54, _FORWARD, text=f"stage {node}")
      stage = (node + 1) % _STAGES
      if stage == dead:
        drawing.box(left + 100, top + 68, 80, 54, _OWED, text=f"stage {stage}")
      elif (node, dead) == (1, 2):
        continue
      else:
        text = f"replica of\nstage {stage}"
        drawing.box(left + 100, top + 68, 80, 54, _REDUNDANT, text=text)
  return drawing


def draw_ladder() -> Drawing:
  """Draws the rungs, the cheapest first."""
  rungs = (
      ("shadow", "each lost stage has a live shadow", "it does what is owed"),
      (
          "reroute",
          "owner and shadow are lost, another pipeline lives",
          "other pipelines compute the shares of this one",
      ),
      ("reconfigure", "every layer has a copy somewhere", "new pipelines; the step is made again"),
      ("checkpoint", "some layer has no copy left", "new pipelines from the newest checkpoint"),
  )
  drawing = Drawing(900, 290)
  drawing.text(14, 24, "Nodes die: the first rung that suffices", size=15, bold=True)
  for index, (name, when, what) in enumerate(rungs):
    left, top = 20 + index * 40, 44 + index * 58
    fill = (_BACKWARD, _FORWARD, _REDUNDANT, _OWED)[index]
    drawing.box(left, top, 120, 44, fill, text=name, size=14)
    drawing.text(left + 136, top + 19, f"if {when}:")
    drawing.text(left + 136, top + 37, what)
    if index + 1 < len(rungs):
      drawing.line((left + 20, top + 44), (left + 20, top + 80), arrow=False)
      drawing.line((left + 20, top + 80), (left + 38, top + 80))
      drawing.text(left - 6, top + 66, "else", size=11, anchor="start")
  return drawing


def draw_membership() -> Drawing:
  """Draws how a death becomes a view."""
  drawing = Drawing(900, 400)
  columns = {"n2": 90, "n0": 330, "n1": 570, "records/views": 800}
  for name, x in columns.items():
    what = f"node {name}" if name[0] == "n" else name
    drawing.box(x - 70, 14, 140, 40, _GREY, text=what)
    end = 90 if name == "n2" else 385
    drawing.line((x, 54), (x, end), arrow=False, dashed=True)
  n2, n0, n1, views = columns.values()
  drawing.text(n2, 108, "✕ dies", fill=_DEAD, anchor="middle", bold=True)

  def say(start: float, end: float, y: float, text: str) -> None:
    sign = 1 if end > start else -1
    drawing.line((start + 4 * sign, y), (end - 4 * sign, y))
    drawing.text((start + end) / 2, y - 6, text, anchor="middle")

  say(n2, n0, 84, "connection closes")
  say(n1, n0, 124, "n2 refuses me, too")
  said = "n0 is the oldest:\nit makes the next view"
  drawing.box(n0 - 75, 136, 150, 34, _WHITE, stroke="none", text=said, size=11)
  say(n0, views, 196, "view 4 = {n0, n1}, if there is none")
  say(n0, n1, 232, "view 4")
  say(n1, n0, 268, "what I hold, how far I am")
  say(n0, n1, 304, "what I hold, how far I am")
  for x in (n0, n1):
    drawing.box(x - 100, 324, 200, 44, _BACKWARD, text="the same decision\nfrom the same facts")
  return drawing


FIGURES = {
    "step": draw_step,
    "redundancy": draw_redundancy,
    "ladder": draw_ladder,
    "membership": draw_membership,
}


def main() -> None:
  """Writes all figures beside this file."""
  for name, draw in FIGURES.items():
    (_FOLDER / f"{name}.svg").write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
  main()
