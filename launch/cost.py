r"""Shows where the time of a run's nodes went, and what it cost.

bamboo cost --workdir=runs/quickstart
bamboo cost --workdir=runs/quickstart --instance=p4d.24xlarge

The run may still be running; `bamboo report` writes a page on it. Prices are
those of its config, unless flags override them; without an instance
(`config.cost.instance` or `--instance`) there are no dollars.
docs/guides/cost.md explains the figures.
"""

import pathlib

from absl import flags

from bamboo_jax.accounting import prices as prices_lib, runs
from bamboo_jax.launch import charge_flags, cli, shared_flags

_WORKDIR = shared_flags.define_workdir("Of the run.")
_REPORT = flags.DEFINE_bool("report", False, "Gone; see bamboo report.")
flags.adopt_module_key_flags(charge_flags)


def main() -> None:
  """Prints the account of a run."""
  if _REPORT.present:
    raise ValueError("--report is gone: use `bamboo report`, which also takes --instance=NAME.")
  workdir = pathlib.Path(_WORKDIR.value)
  options = runs.read_options(workdir / "config.json")
  options |= (given := charge_flags.given())
  market = options.pop("market")
  price = None
  if options["instance"] is not None:
    price = prices_lib.find_price(**options)
  elif given:
    raise ValueError(prices_lib.NO_INSTANCE.format(next(iter(given))))
  account = runs.load_account(workdir / "metrics.jsonl", price=price, market=market)
  print(account.render())
  if price is None:
    print("cost: not known; --instance=NAME says what a node is charged as")


if __name__ == "__main__":
  cli.run(main)
