"""Plans the rows of a step for a layout: of a whole step, or of its rest."""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.schedule import filling as filling_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import timeline as timeline_lib

# By pipeline with shares, or one if pipelines have nodes in common.
Timelines = Sequence[timeline_lib.Timeline]


class StepPlans:
  """Plans steps; caches the whole step of the last layout.

  Args:
    rows: Plans rows.
    fills: Whether redundant forward passes fill waits as these occur; otherwise
      they are placed ahead.
  """

  def __init__(self, rows: rows_lib.RowPlanner, *, fills: bool = False) -> None:
    self._rows, self._fills = rows, fills
    self._layout = layout_lib.Layout()
    self._whole: Timelines = ()
    self._filling: filling_lib.StepFilling | None = None

  def whole(self, layout: layout_lib.Layout) -> Timelines:
    """Returns the timelines of a whole step."""
    if layout != self._layout:
      self._layout, self._filling = layout, None
      if layout.is_joint:
        lines = layout.lines(self._rows)
        self._whole = [self._rows.play(lines, slow=layout.slow)]
      else:
        self._plan_apart(layout)
    return self._whole

  def filling(
      self, layout: layout_lib.Layout
  ) -> filling_lib.StepFilling | None:
    """Returns how waits of a whole step are filled; None if they are not."""
    self.whole(layout)
    return self._filling

  def _plan_apart(self, layout: layout_lib.Layout) -> None:
    """Plans a step of pipelines that have no node in common."""
    plans = [
        self._rows.whole(
            p,
            roles,
            shares=layout.shares[p],
            partition=layout.pipelines[p].partition,
            slow=layout.slow,
        )
        for p, roles in enumerate(layout.roles)
        if layout.shares[p]
    ]
    if not self._fills:
      self._whole = [plan.timeline for plan in plans]
      return
    self._whole = [plan.lazy for plan in plans]
    self._filling = self._rows.redundant.fill(
        plans,
        layout.roles,
        dataclasses.replace(self._rows.costs, slow=layout.slow),
    )

  def rest(
      self,
      layout: layout_lib.Layout,
      holdings: Mapping[base.NodeId, holdings_lib.Holdings],
  ) -> Timelines:
    """Returns the timelines of the rest of a step after a death.

    `holdings` is the data of the step that each node holds. Raises
    `base.InfeasibleError` if a needed value has no copy.
    """
    lines = layout.lines(self._rows)
    groups = [lines] if layout.is_joint else [[line] for line in lines]
    return [
        self._rows.play(group, holdings, slow=layout.slow) for group in groups
    ]
