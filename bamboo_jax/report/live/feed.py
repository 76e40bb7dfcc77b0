"""Reads what a run tells: its records, its log, and rows of its members."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import json
import pathlib
import time
from typing import Any

from absl import logging

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.metrics import jsonl, rows as rows_lib
from bamboo_jax.report.live import facts

_RECORDS_SECS = 0.5  # Between two reads of the records.
_ROWS_SECS = 2.0  # And of the rows.
_COST = [field.name for field in dataclasses.fields(config_lib.CostSection)]


def read_run(records: records_lib.Records) -> facts.StoredRun:
  """Returns the newest run of a folder.

  Raises `OSError` if the records cannot be read, `ValueError` without a run.
  """
  view = judge.newest_view(records)
  config = (records.find(f"run/{view.run}") or {}).get("config", {}).get("config")
  if config is None:
    raise ValueError(f"There is no run of agents in {records.where}.")
  there = [mark["member"] for mark in records.marks("nodes").values()]
  return facts.StoredRun(
      view=view,
      registered=[json_lib.from_plain(views.Member, member) for member in there],
      status=records.find(f"status/{view.run}") or {},
      config=config,
  )


class Feed:
  """Reads a run, in one thread.

  Args:
    workdir: Folder of the run; None if this machine cannot read it.
    records: Those of a run with agents; None for a run that is over.
    name: Name of the run, for people.
    actions: Faults that buttons may cause.
    kills: See `facts.History`; may grow.
    charges: Replace entries of `config.cost`.
  """

  def __init__(
      self,
      workdir: pathlib.Path | None,
      records: records_lib.Records | None = None,
      *,
      name: str = "run",
      actions: Sequence[str] = (),
      kills: Mapping[base.NodeId, float] = facts.EMPTY,
      charges: Mapping[str, Any] | None = None,
  ) -> None:
    self._workdir, self._records, self._charges = workdir, records, charges or {}
    self._known = facts.Known(name, facts.History(kills), actions=actions)
    self._log: jsonl.MetricsReader | None = None
    if workdir is not None:
      self._log = jsonl.MetricsReader(workdir / "metrics.jsonl")
    self._cost = config_lib.CostSection()
    self._records_secs = self._rows_secs = -_ROWS_SECS

  def read(self) -> dict[str, Any]:
    """Returns the value of `facts.find` now; blocks, for the records at most.

    Raises `OSError` if the records or a file of the run cannot be read, and
    `ValueError` if they do not fit.
    """
    now, known, workdir = time.monotonic(), self._known, self._workdir
    if self._records is not None and now >= self._records_secs + _RECORDS_SECS:
      run = known.run = read_run(self._records)
      known.met |= {member.number: member for member in run.view.members}
      self._records_secs = now
      self._set_config(run.config)
    if workdir is not None:
      try:
        assert self._log is not None
        lines = self._log.read()
        if any(line.get("event") in jsonl.CUTS for line in lines):  # Steps are repeated.
          known.history = facts.History(known.history.kills)
          lines = jsonl.read_lines(workdir / "metrics.jsonl")
        known.history.add(lines)
        if now >= self._rows_secs + _ROWS_SECS:
          self._rows_secs = now
          steps = rows_lib.read_steps(workdir / "rows", known.history.recoveries.values())
          if self._records is None:  # A step with a death is not comparable to its plan.
            steps = [step for step in steps if not step.deaths] or steps
          known.rows = steps[-1] if steps else None
        if self._records is None:
          self._set_config(_read_config(workdir / "config.json"))
          with contextlib.suppress(FileNotFoundError):  # The run is not over.
            known.summary = json.loads((workdir / "summary.json").read_text())
      except ValueError as error:
        if self._records is None:
          raise
        logging.warning("%s Only the records are shown.", error)
        self._workdir = None
    known.now_secs = time.time()
    return facts.find(known)

  def _set_config(self, config: facts.Value) -> None:
    self._known.config = config
    given = {**config.get("cost", {}), **self._charges}
    if self._charges and not given.get("instance"):
      raise ValueError(prices_lib.NO_INSTANCE.format(next(iter(self._charges))))
    cost = config_lib.CostSection(**{name: given[name] for name in _COST if name in given})
    if cost != self._cost:
      try:
        self._known.price = prices_lib.find(cost)
      except OSError:  # The file may be on the machine of the run, which tells its own dollars.
        if self._records is None:
          raise
    self._cost, self._known.market = cost, cost.market


def _read_config(path: pathlib.Path) -> facts.Value:
  """Returns the config of a run; `ValueError` if the file is damaged."""
  with contextlib.suppress(ValueError):
    if isinstance(config := json.loads(path.read_text()), dict):
      return config
  raise ValueError(f"{path} is not the config of a run.")
