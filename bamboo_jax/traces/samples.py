"""Reads numbers of live nodes from lines `date, time, count`.

Lines may overlap: a recorder repeats a reading for minutes while it takes the
next ones, and a file may merge several recorders. They are sorted by time; the
last reading counts.
"""

from collections.abc import Sequence
import dataclasses
import datetime

from bamboo_jax.traces import counts as trace_counts, trace as trace_lib

# A line within this time of the previous line with the same count repeats its
# reading. A longer limit would merge equal counts of unsorted lines.
_REPEAT = datetime.timedelta(minutes=1)


@dataclasses.dataclass
class _Reading:
  line: int
  start: datetime.datetime
  end: datetime.datetime
  count: int


def parse_samples(
    lines: Sequence[tuple[int, str]], *, source: str, zone: str, seed: int
) -> trace_lib.Trace:
  """Returns the trace of lines `date, time, count`, in any order.

  `zone` may be empty. Raises `ValueError`, which names the line, if one is not
  a sample or two contradict each other.
  """
  readings: list[_Reading] = []
  samples = []  # A sample is a time and the reading of its line.
  for number, line in lines:
    try:
      at, count = _parse_sample(line)
    except ValueError as error:
      raise ValueError(f"{source}, line {number}: {error}") from None
    last = readings[-1] if readings else None
    if last and count == last.count and last.end < at <= last.end + _REPEAT:
      last.end = at
    else:
      readings.append(_Reading(number, at, at, count))
    samples.append((at, readings[-1]))
  _check_readings(readings, source)
  samples.sort(key=lambda sample: (sample[0], sample[1].start))
  start, newest = samples[0]
  steps = []
  for at, reading in samples:
    if reading.start >= newest.start or at > newest.end:
      newest = max(newest, reading, key=lambda r: r.start)
      time_ms = (at - start) // datetime.timedelta(milliseconds=1)
      steps.append((time_ms, reading.count))
  midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
  return trace_counts.infer_nodes(
      {zone: steps},
      seed=seed,
      name=source,
      duration_ms=steps[-1][0],
      start_hour=(start - midnight) / datetime.timedelta(hours=1),
  )


def _check_readings(readings: Sequence[_Reading], source: str) -> None:
  by_start: dict[datetime.datetime, _Reading] = {}
  for reading in readings:
    other = by_start.setdefault(reading.start, reading)
    if other.count != reading.count:
      raise ValueError(
          f"{source}, line {reading.line}: {reading.count} live nodes, but "
          f"{other.count} at the same time in line {other.line}."
      )


def _parse_sample(line: str) -> tuple[datetime.datetime, int]:
  cells = [cell.strip() for cell in line.split(",")]
  if len(cells) != 3:
    raise ValueError(f"a sample is date, time, count, got {line!r}.")
  date, time, count = cells
  try:
    at = datetime.datetime.combine(
        datetime.date.fromisoformat(date), datetime.time.fromisoformat(time)
    )
  except ValueError:
    raise ValueError(
        "date and time must be as in 2021-12-10, 13:07:45, got " f"{date + ', ' + time!r}."
    ) from None
  if at.tzinfo is not None:
    raise ValueError(f"time must be without a time zone, got {time!r}.")
  if not (count.isascii() and count.isdigit()):
    raise ValueError(f"count must be a non-negative integer, got {count!r}.")
  return at, int(count)
