"""The account of a run that trained, from the log in its workdir.

The line of a step holds the totals of the whole run so far, under "account"
(see `ledger.Totals`). So the last line suffices, and any price can be applied
to it later.
"""

from collections.abc import Iterable, Mapping
import dataclasses
from typing import Any

from bamboo_jax.accounting import ledger as ledger_lib

KEY = "account"


@dataclasses.dataclass(frozen=True)
class StepTotals:
  """The totals after a step, from a line of a log."""

  step: int
  totals: ledger_lib.Totals


def entries(lines: Iterable[Mapping[str, Any]]) -> tuple[StepTotals, ...]:
  """Returns the entries in lines of a log; `ValueError` for a bad "account"."""
  return tuple(
      StepTotals(line["step"], ledger_lib.Totals.parse(line[KEY]))
      for line in lines
      if line.get(KEY) is not None
  )


def last_totals(
    lines: Iterable[Mapping[str, Any]], *, up_to_step: int | None = None
) -> ledger_lib.Totals:
  """Returns the last totals in lines of a log; zeros if there are none."""
  last = ledger_lib.Totals()
  for entry in entries(lines):
    if up_to_step is None or entry.step <= up_to_step:
      last = entry.totals
  return last
