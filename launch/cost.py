r"""Shows where the time of a run's nodes went, and what it cost.

python -m launch.cost --workdir=runs/quickstart
python -m launch.cost --workdir=runs/quickstart --instance=p4d.24xlarge --report

The run may be going on. It is charged as its config says, unless the flags say
otherwise; docs/cost.md explains the figures.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.accounting import runs
from bamboo_jax.metrics import jsonl
from launch import cli

_WORKDIR = flags.DEFINE_string("workdir", None, "Of the run.", required=True)
_INSTANCE = flags.DEFINE_string("instance", None, "Charge nodes as these.")
_MARKET = flags.DEFINE_string("market", None, "Pay spot or on_demand prices.")
_PRICES = flags.DEFINE_string("prices", None, "File of prices.")
_REGION = flags.DEFINE_string("region", None, "Take the price of this region.")
_DATE = flags.DEFINE_string("date", None, "Take the price of this date.")
_REPORT = flags.DEFINE_bool("report", False, "Also write report.html there.")


def main(argv: Sequence[str]) -> None:
  """Prints the account of a run."""
  cli.check_no_arguments(argv)
  workdir = pathlib.Path(_WORKDIR.value)
  options = runs.read_options(workdir / "config.json")
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
  account = runs.load_account(
      workdir / "metrics.jsonl", price=price, market=options["market"]
  )
  print(account.render())
  if _REPORT.value:
    print(f"report: {_write_report(workdir, account)}")


def _write_report(
    workdir: pathlib.Path, account: account_lib.Account
) -> pathlib.Path:
  from bamboo_jax.report import content
  from bamboo_jax.report import page
  from bamboo_jax.report import run_course

  lines = jsonl.read_lines(workdir / "metrics.jsonl")
  course = run_course.make_course(
      lines, price=account.price, market=account.market
  )
  run = content.Run(name=workdir.name, account=account, course=course)
  report = content.Report(title=f"Run {workdir.name}", runs=[run])
  return page.write_report(workdir, report)


if __name__ == "__main__":
  cli.run(main)
