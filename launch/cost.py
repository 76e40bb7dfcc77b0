r"""Shows where the time of a run's nodes went, and what it cost.

python -m launch.cost --workdir=runs/quickstart
python -m launch.cost --workdir=runs/quickstart --instance=p4d.24xlarge --report

The run may be going on. It is charged as its config says, unless the flags say
otherwise; docs/cost.md explains the figures.
"""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any

from absl import flags

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.accounting import runs
from bamboo_jax.metrics import jsonl
from launch import cli

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where the run is.", required=True
)
_INSTANCE = flags.DEFINE_string(
    "instance", None, "Charge each node as one of these."
)
_MARKET = flags.DEFINE_string("market", None, "Pay spot or on_demand prices.")
_PRICES = flags.DEFINE_string("prices", None, "File of prices.")
_REGION = flags.DEFINE_string("region", None, "Take the price of this region.")
_DATE = flags.DEFINE_string("date", None, "Take the price of this date.")
_REPORT = flags.DEFINE_bool(
    "report", False, "Also write report.html into the workdir."
)


def main(argv: Sequence[str]) -> None:
  """Prints the account of a run."""
  cli.check_no_arguments(argv)
  workdir = pathlib.Path(_WORKDIR.value)
  options = _read_options(workdir / "config.json")
  given = {
      flag.name: flag.value
      for flag in (_INSTANCE, _MARKET, _PRICES, _REGION, _DATE)
      if flag.value is not None
  }
  if "instance" in given or "prices" in given:  # Another node, or another list.
    options |= {"region": None, "date": None}
  options |= given
  account_lib.check_market(options["market"])
  path = options["prices"] or prices_lib.DEFAULT_PATH
  price = prices_lib.find_price(
      prices_lib.load_prices(path),
      options["instance"],
      region=options["region"],
      date=options["date"],
      source=path,
  )
  log = workdir / "metrics.jsonl"
  account = runs.load_account(log, price=price, market=options["market"])
  print(render_account(account))
  if _REPORT.value:
    print(f"report: {_write_report(workdir, log, account)}")


def render_account(account: account_lib.Account) -> str:
  """Returns an account as lines for somebody to read."""
  price = account.price
  shares = account.node_time.shares()
  per_million = account.usd_per_million_samples
  lines = [
      f"price: ${price.usd_per_hour(account.market):g} an hour for a "
      f"{price.instance} ({account.market}; {price.source}, {price.date})",
      f"time: {account.secs / 3600:.4f} h on {account.num_nodes:.2f} nodes",
      f"samples: {account.num_samples:.0f}, {account.samples_per_sec:.4g} a "
      "second",
      f"cost: ${account.usd:.4f}, ${account.usd_per_hour:.4g} an hour (spot "
      f"${account.spot_usd:.4f}, on demand ${account.on_demand_usd:.4f})",
      f"value: {account.value:.4g} samples/s per $/h",
      "dollars per million samples: "
      + ("none trained" if per_million is None else f"{per_million:.4g}"),
      "time of the nodes:",
  ]
  lines += [f"  {kind:<12}{100 * s:6.2f} %" for kind, s in shares.items()]
  return "\n".join(lines)


def _read_options(path: pathlib.Path) -> dict[str, Any]:
  """Returns how the config of a run charges its nodes."""
  try:
    options = json.loads(path.read_text())["cost"]
  except (ValueError, KeyError, TypeError):
    options = None
  if not isinstance(options, Mapping):
    raise ValueError(f"{path} is not the config of a run with costs.")
  wanted = ("instance", "market", "prices", "region", "date")
  return {name: options.get(name) for name in wanted}


def _write_report(
    workdir: pathlib.Path, log: pathlib.Path, account: account_lib.Account
) -> pathlib.Path:
  from bamboo_jax.report import content
  from bamboo_jax.report import page
  from bamboo_jax.report import run_course

  course = run_course.make_course(
      jsonl.read_lines(log), price=account.price, market=account.market
  )
  run = content.Run(name=workdir.name, account=account, course=course)
  report = content.Report(title=f"Run {workdir.name}", runs=[run])
  return page.write_report(workdir, report)


if __name__ == "__main__":
  cli.run(main)
