"""Contents of a report, as plain values: runs, sweeps and comparisons.

Simulations and logs of runs fill these in; `page` and `charts` draw them. Empty
parts are omitted.
"""

from collections.abc import Sequence
import dataclasses
import itertools

from bamboo_jax.accounting import account as account_lib


@dataclasses.dataclass(frozen=True, slots=True)
class RunEvent:
  """An event of a run, `secs` after its start.

  `rung` is the rung of the recovery ladder that was taken; "" if none.
  """

  secs: float
  text: str
  rung: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Course:
  """A run over time, as pieces of constant throughput.

  `secs` has the start of each piece, and the end of the last: one more than
  pieces; `usd` the dollars spent until each of `secs`.
  """

  secs: Sequence[float]
  samples_per_sec: Sequence[float]
  num_nodes: Sequence[float]
  usd: Sequence[float]
  events: Sequence[RunEvent] = ()

  def __post_init__(self) -> None:
    num_pieces = len(self.secs) - 1
    assert num_pieces > 0 and len(self.usd) == len(self.secs), self
    assert len(self.samples_per_sec) == len(self.num_nodes) == num_pieces, self
    assert all(a <= b for a, b in itertools.pairwise(self.secs)), self


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportRun:
  """One run, real or simulated; `name` is unique in a report."""

  name: str
  account: account_lib.Account
  course: Course | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
  """The value at one preemption rate (or probability).

  `value` is the mean over `num_runs` runs of samples per second over dollars
  per hour; `low` and `high` are the ends of its bar, None for a single run.
  """

  rate: float
  value: float
  low: float | None
  high: float | None
  num_runs: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
  """Value against preemption rate, for one policy."""

  policy: str
  points: Sequence[Point]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
  """One line of a comparison, such as "throughput, p = 0.10".

  `published` is None if there is no such figure; `simulated` has one entry per
  column of the table, None if unavailable.
  """

  what: str
  published: float | None
  simulated: Sequence[float | None]
  note: str = ""

  @property
  def ratios(self) -> tuple[float | None, ...]:
    """Simulated over published; None where one is missing or zero."""
    published = self.published
    return tuple(s / published if published and s is not None else None for s in self.simulated)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
  """Published figures, from `source`, against simulations, one per column.

  `label` describes the published figures.
  """

  title: str
  source: str
  columns: Sequence[str]
  lines: Sequence[Figures]
  label: str = "published"

  def rows(self, spec: str) -> list[list[str]]:
    """Returns the table as text, head first; `spec` formats figures."""
    head = ["", self.label]
    for column in self.columns:
      head += [column, "ratio"]
    has_notes = any(line.note for line in self.lines)
    rows = [head + ["note"] * has_notes]
    for line in self.lines:
      row = [line.what, number(line.published, spec)]
      columns = zip(self.columns, line.simulated, line.ratios, strict=True)
      for _, figure, ratio in columns:
        row += [number(figure, spec), number(ratio, ".3f")]
      rows.append(row + [line.note] * has_notes)
    return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
  """A page: runs on the same trace, curves, comparisons.

  Remarks are paragraphs; `rate_name` and `value_name` are names and units of
  the curves' axes, `bars` describes their bars.
  """

  title: str
  remarks: Sequence[str] = ()
  runs: Sequence[ReportRun] = ()
  curves: Sequence[Curve] = ()
  rate_name: str = "preemption probability per hour"
  value_name: str = "value (samples/s per $/h)"
  bars: str = "95 % confidence intervals"
  comparisons: Sequence[Comparison] = ()

  def __post_init__(self) -> None:
    names = [run.name for run in self.runs]
    assert len({*names}) == len(names), names
    policies = [curve.policy for curve in self.curves]
    assert len({*policies}) == len(policies), policies


def number(value: float | None, spec: str) -> str:
  """Returns `value` as text, a dash for None."""
  return "–" if value is None else format(value, spec)
