r"""Shows where the time of a run's nodes went, and what it cost.

bamboo cost --workdir=runs/quickstart
bamboo cost --workdir=runs/quickstart --instance=p4d.24xlarge --report

The run may still be running. Prices are those of its config, unless flags
override them; without an instance (`config.cost.instance` or `--instance`)
there are no dollars. docs/guides/cost.md explains the figures.
"""

import pathlib

from absl import flags

from bamboo_jax.accounting import prices as prices_lib, runs
from bamboo_jax.launch import cli, figure_flags, flag_checks, shared_flags
from bamboo_jax.metrics import jsonl

_WORKDIR = shared_flags.define_workdir("Of the run.")
_CHARGES = tuple(
    flags.DEFINE_string(name, None, help_text)
    for name, help_text in (
        ("instance", "Charge nodes as these."),
        ("market", "Pay spot or on_demand prices."),
        ("prices", "File of prices."),
        ("region", "Take the price of this region."),
        ("date", "Take the price of this date."),
    )
)
_FORMAT = figure_flags.define()
_REPORT = flags.DEFINE_bool("report", False, "Also write report.html there.")


def main() -> None:
  """Prints the account of a run."""
  flag_checks.check_needs([_FORMAT], _REPORT)
  workdir = pathlib.Path(_WORKDIR.value)
  options = runs.read_options(workdir / "config.json")
  given = {f.name: f.value for f in _CHARGES if f.value is not None}
  if "instance" in given or "prices" in given:  # Another node, or another list.
    options |= {"region": None, "date": None}
  options |= given
  market = options.pop("market")
  price = None
  if options["instance"] is not None:
    price = prices_lib.find_price(**options)
  elif _REPORT.value or given:
    name = next(iter(given), "report")
    raise ValueError(
        f"--{name} needs a price, and the config of the run names no instance: "
        "give --instance=NAME, such as p3.2xlarge."
    )
  log = workdir / "metrics.jsonl"
  account = runs.load_account(log, price=price, market=market)
  print(account.render())
  if price is None:
    print("cost: not known; --instance=NAME says what a node is charged as")
  if _REPORT.value and price is not None:
    from bamboo_jax.report import content, page, run_course

    lines = jsonl.read_lines(log)
    course = run_course.make_course(lines, price=price, market=market)
    run = content.ReportRun(name=workdir.name, account=account, course=course)
    report = content.Page(title=f"Run {workdir.name}", runs=[run])
    path = page.write_report(workdir, report, formats=_FORMAT.value)
    print(f"report: {path}")


if __name__ == "__main__":
  cli.run(main)
