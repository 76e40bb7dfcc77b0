"""Plans the rows of a step for a layout: of a whole step, or of its rest."""

from collections.abc import Mapping, Sequence

from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import timeline as timeline_lib

# By pipeline, or one if pipelines have nodes in common.
Timelines = Sequence[timeline_lib.Timeline]


class StepPlans:
  """Plans steps; caches the whole step of the last layout."""

  def __init__(self, rows: rows_lib.RowPlanner) -> None:
    self._rows = rows
    self._layout = layout_lib.Layout()
    self._whole: Timelines = ()

  def whole(self, layout: layout_lib.Layout) -> Timelines:
    """Returns the timelines of a whole step."""
    if layout != self._layout:
      self._layout = layout
      if layout.is_joint:
        self._whole = [self._rows.play(layout.lines(self._rows))]
      else:
        self._whole = [
            self._rows.whole(
                p,
                roles,
                shares=layout.shares[p],
                partition=layout.pipelines[p].partition,
            ).timeline
            for p, roles in enumerate(layout.roles)
        ]
    return self._whole

  def rest(
      self,
      layout: layout_lib.Layout,
      holdings: Mapping[int, holdings_lib.Holdings],
  ) -> Timelines:
    """Returns the timelines of the rest of a step after a death.

    `holdings` is the data of the step that each node holds. Raises
    `base.InfeasibleError` if a needed value has no copy.
    """
    lines = layout.lines(self._rows)
    groups = [lines] if layout.is_joint else [[line] for line in lines]
    return [self._rows.play(group, holdings) for group in groups]
