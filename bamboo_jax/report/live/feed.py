"""Reads what a run tells: its store, its log, and rows of its members."""

from collections.abc import Mapping, Sequence
import json
import pathlib
import time
from typing import Any

from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.cluster.store import registry as registry_lib
from bamboo_jax.metrics import chrome_trace
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import rows as rows_lib
from bamboo_jax.report import status as status_lib
from bamboo_jax.report.live import facts
from bamboo_jax.report.live import history as history_lib

_STORE_SECS = 0.5  # Between two reads of the store.
_ROWS_SECS = 2.0  # And of the rows.


class Feed:
  """Reads a run, in one thread.

  Args:
    workdir: Folder of the run; None if this machine cannot read it.
    registry: Its store; None for a run that is over.
    name: Name of the run in the store.
    actions: Faults that buttons may cause.
  """

  def __init__(
      self,
      workdir: pathlib.Path | None,
      registry: registry_lib.Registry | None = None,
      *,
      name: str = "run",
      actions: Sequence[str] = (),
  ) -> None:
    self._workdir, self._registry, self._name = workdir, registry, name
    self._actions = actions
    self._log: jsonl.MetricsReader | None = None
    if workdir is not None:
      self._log = jsonl.MetricsReader(workdir / "metrics.jsonl")
    self._history = history_lib.History()
    self._run: status_lib.StoredRun | None = None
    self._cost: Mapping[str, Any] = {}
    self._price: prices_lib.Price | None = None
    self._rows: Mapping[str, Any] | None = None
    self._store_secs = self._rows_secs = -_ROWS_SECS

  def read(self) -> dict[str, Any]:
    """Returns the value of `facts.find` now; blocks, for the store at most.

    Raises `OSError` if the store or a file of the run cannot be read, and
    `ValueError` if they do not fit.
    """
    now = time.monotonic()
    if self._registry is not None and now >= self._store_secs + _STORE_SECS:
      self._run = status_lib.read(self._registry, self._name)
      self._store_secs = now
      self._find_price(self._run.config)
    if self._workdir is not None:
      self._read_workdir(self._workdir, now)
    return facts.find(
        facts.Known(
            self._name,
            self._history,
            self._run,
            self._price,
            self._cost.get("market", "spot"),
            self._rows,
            self._actions,
        )
    )

  def _read_workdir(self, workdir: pathlib.Path, now: float) -> None:
    assert self._log is not None
    try:
      is_new, lines = self._log.read()
    except FileNotFoundError:
      return  # No step is done yet.
    if is_new:
      self._history = history_lib.History()
    self._history.add(lines)
    if now >= self._rows_secs + _ROWS_SECS:
      self._rows_secs = now
      folder = workdir / "rows"
      planned = [*rows_lib.read(folder / rows_lib.PLANNED), None][0]
      members = rows_lib.read_members(folder)
      self._rows = facts.find_rows(planned, members, self._history)
      if self._rows is None and (workdir / "trace.json").exists():
        last = chrome_trace.read_last(workdir / "trace.json")
        self._rows = facts.traced_rows(last)
    if self._registry is None:
      self._find_price(json.loads((workdir / "config.json").read_text()))

  def _find_price(self, config: Mapping[str, Any]) -> None:
    cost = config.get("cost", {})
    if cost != self._cost and cost.get("instance"):
      self._price = prices_lib.find_price(
          cost["instance"],
          **{name: cost.get(name) for name in ("prices", "region", "date")},
      )
    self._cost = cost
