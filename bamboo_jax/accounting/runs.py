"""The account of a run that trained, from the log in its workdir.

The line of a step holds the totals of the whole run so far, under "account"
(see `ledger.Totals`). So the last line suffices, and any price can be applied
to it later.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import json
import os
import pathlib
from typing import Any

from bamboo_jax.accounting import account as account_lib, ledger as ledger_lib, prices as prices_lib
from bamboo_jax.metrics import jsonl

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


def load_account(
    path: str | os.PathLike[str], *, price: prices_lib.Price | None, market: str
) -> account_lib.Account:
  """Returns the account of a run from its log at `path`.

  Raises `OSError`, or `ValueError` if the file is not a log or has no account.
  """
  totals = last_totals(jsonl.read_lines(path))
  if not totals.secs:
    raise ValueError(
        f"{os.fspath(path)} contains no account: no step is done yet, or an "
        "earlier version wrote it."
    )
  return ledger_lib.Ledger(price, market=market, start=totals).account()


def read_options(path: pathlib.Path) -> dict[str, Any]:
  """Returns the options that select a price, from a run's saved config.

  They are `instance`, `market`, `prices`, `region` and `date`; None if absent.
  Raises `OSError`, or `ValueError` if the file has no section `cost`.
  """
  try:
    options = json.loads(path.read_text())["cost"]
  except (ValueError, KeyError, TypeError):
    options = None
  if not isinstance(options, Mapping):
    raise ValueError(f"{path} is not the config of a run with costs.")
  wanted = ("instance", "market", "prices", "region", "date")
  return {name: options.get(name) for name in wanted}
