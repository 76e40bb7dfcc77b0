"""Node prices per hour: a table in a file that users edit.

The file is comma-separated with a header; `source` and `date` give the origin
of a price, because spot prices change. Lines that start with `#` are comments.
The default is `instances.csv` beside this module, which `machines` reads too.
"""

from collections.abc import Sequence
import contextlib
import csv
import dataclasses
import datetime
import math
import pathlib
import re
from typing import Any

from bamboo_jax import base, config as config_lib

MARKETS = ("spot", "on_demand")
# What nodes of simulations are charged as whose config names none; Bamboo used it.
STANDARD = config_lib.CostSection(instance="p3.2xlarge", date="2021")
DEFAULT_PATH = pathlib.Path(__file__).with_name("instances.csv")

NO_INSTANCE = (
    "--{} needs a price, and the config of the run names no instance: give "
    "--instance=NAME, such as p3.2xlarge."
)

_UNDATED = "undated"
_PRICES = ("on_demand_usd_per_hour", "spot_usd_per_hour")
_MAY_LACK = ("network_gbit_per_sec", *_PRICES)
_NUMBERS = ("gpu_count", *_MAY_LACK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Price:
  """The price of one kind of node.

  Attributes:
    instance: The provider's name of the kind of node, such as "p3.2xlarge".
    network_gbit_per_sec: Between nodes; None if unknown.
    on_demand_usd_per_hour: Price of a node that is never preempted; None if
      unknown.
    spot_usd_per_hour: Price of a preemptible node, at most `on_demand`; None if
      unknown.
    date: Year, year-month or year-month-day, such as "2025-03"; or "undated",
      which sorts before any date.
  """

  provider: str = ""
  instance: str
  region: str = ""
  gpu: str = ""
  gpu_count: int = 1
  network_gbit_per_sec: float | None = None
  on_demand_usd_per_hour: float | None
  spot_usd_per_hour: float | None
  source: str
  date: str

  def __post_init__(self) -> None:
    for name in _NUMBERS:
      value = getattr(self, name)
      if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{name} of {self.instance!r} must be above 0, got {value}.")
    on_demand, spot = (getattr(self, name) for name in _PRICES)
    if on_demand and spot and spot > on_demand:
      raise ValueError(
          f"The spot price of {self.instance!r}, {spot}, is above the "
          f"on-demand price, {on_demand}."
      )
    for name in ("instance", "source"):
      if not getattr(self, name).strip():
        raise ValueError(f"A price needs {name!r}.")
    if not _is_date(self.date):
      raise ValueError(
          f"date of {self.instance!r} must be year, year-month, year-month-day "
          f"or {_UNDATED}, got {self.date!r}."
      )

  def usd_per_hour(self, market: str) -> float:
    """Returns the price in a market, one of `MARKETS`."""
    usd_per_hour: float = getattr(self, f"{market}_usd_per_hour")
    return usd_per_hour

  def render(self, market: str) -> str:
    """Returns the price in a market, with its source and date, as text."""
    return (
        f"${self.usd_per_hour(market):g} an hour for a {self.instance} "
        f"({market}; {self.source}, {self.date})"
    )


def _is_date(text: str) -> bool:
  with contextlib.suppress(ValueError):
    datetime.date.fromisoformat(text + "-01" * (2 - text.count("-")))
    return re.fullmatch(r"\d{4}(-\d\d){0,2}", text) is not None
  return text == _UNDATED


def load_prices(source: base.StrPath) -> tuple[Price, ...]:
  """Returns the prices of a file; "year" may stand for "date".

  Raises `OSError`, or `ValueError` with file and line if a line does not fit.
  """
  text = pathlib.Path(source).read_text(encoding="utf-8-sig", errors="replace")
  numbered = enumerate(text.splitlines(), start=1)
  lines = [(n, l) for n, l in numbered if l.strip() and l[0] != "#"]
  if not lines:
    raise ValueError(f"{source}: there are no prices.")
  (first, header), *rest = lines
  names = [name.strip() for name in next(csv.reader([header]))]
  names = ["date" if name == "year" else name for name in names]
  fields = {f.name: f for f in dataclasses.fields(Price)}
  for name in names:
    if name not in fields:
      raise ValueError(f"{source}:{first}: {base.suggest(name, fields, what='column')}")
  for name, field in fields.items():
    if names.count(name) > 1 or (field.default is dataclasses.MISSING and name not in names):
      raise ValueError(f"{source}:{first}: column {name!r} is needed, and only once.")
  prices = []
  for number, line in rest:
    try:
      prices.append(_parse_line(names, next(csv.reader([line], strict=True))))
    except (ValueError, csv.Error) as error:
      raise ValueError(f"{source}:{number}: {error}") from error
  if not prices:
    raise ValueError(f"{source}: there are no prices.")
  return tuple(prices)


def find_or_standard(cost: config_lib.CostSection) -> Price:
  """Returns the price of a node; that of `STANDARD` if the config names no kind of node."""
  if cost.instance is None:
    cost = dataclasses.replace(cost, instance=STANDARD.instance, date=STANDARD.date)
  found = find(cost)
  assert found is not None
  return found


def find(cost: config_lib.CostSection) -> Price | None:
  """Returns the price of a node; None if the config names no kind of node.

  Raises:
    OSError: The file of prices cannot be read.
    ValueError: A line of the file does not fit, or it does not give exactly one
      price per market.
  """
  if (instance := cost.instance) is None:
    return None
  path = cost.prices or DEFAULT_PATH
  found, what = load_prices(path), f"in {path}"
  for name in ("instance", "region", "date"):
    if (value := getattr(cost, name)) is not None:
      allowed = {getattr(price, name) for price in found}
      found = [price for price in found if getattr(price, name) == value]
      if not found:
        raise ValueError(base.suggest(value, allowed, what=f"{name} {what}"))
      what = f"of {instance} in {path}"
  newest = max((p.date for p in found), key=lambda d: (d != _UNDATED, d))
  found = [price for price in found if price.date == newest]
  if len(found) > 1:
    raise ValueError(
        f"Instance {instance!r} has {len(found)} prices of {newest}, in "
        f"{', '.join(p.region or 'no region' for p in found)}: give the "
        "region, or leave one in the file."
    )
  for name in _PRICES:
    if getattr(found[0], name) is None:
      raise ValueError(
          f"Instance {instance!r} has no {name} of {newest} in {path}; both "
          "prices are reported, so both are needed."
      )
  return found[0]


def _parse_line(names: Sequence[str], entries: Sequence[str]) -> Price:
  if len(entries) != len(names):
    raise ValueError(f"there must be {len(names)} columns, got {len(entries)}.")
  values: dict[str, Any] = {n: e.strip() for n, e in zip(names, entries, strict=True)}
  for name in values.keys() & set(_NUMBERS):
    if not values[name] and name in _MAY_LACK:
      values[name] = None
      continue
    kind = int if name == "gpu_count" else float
    try:
      values[name] = kind(values[name])
    except ValueError:
      message = f"{name} must be a number, got {values[name]!r}."
      raise ValueError(message) from None
  return Price(**values)
