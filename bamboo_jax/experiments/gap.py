"""Splits the gap between a policy and the best one by cause.

Samples per node-second are the share of time in which nodes train, T, times
their throughput meanwhile, r. With S the redundant share of T, a policy without
redundancy would train r / (1 - S).

  pauses      less T: recovery, restarts, checkpoints
  lost        less T: training that was rolled back
  idle        less T: nodes without a stage
  redundancy  less r: redundant passes, refresh of replicas
  layout      less r: bubbles, sums of gradients, updates in each pipeline

A difference of T is weighted with the mean r of both, and one of r with the
mean T.
"""

from collections.abc import Sequence
import dataclasses
import statistics

from bamboo_jax.accounting import account as account_lib

_KINDS = {"pauses": ("recovery", "checkpoint", "restart"), "lost": ("lost",), "idle": ("idle",)}
CAUSES = ("layout", "redundancy", *_KINDS)


@dataclasses.dataclass(frozen=True)
class _Pace:
  """The share of training time, and samples per node-second in it."""

  trains: float
  rate: float
  bare_rate: float  # Without redundancy.

  @classmethod
  def of(cls, account: account_lib.Account) -> "_Pace":
    shares = account.node_time.shares()
    trains = sum(shares[kind] for kind in account_lib.TRAINING)
    rate = account.num_samples / (account.node_secs * trains)
    return cls(trains, rate, rate / (1.0 - shares["redundant"] / trains))


def split_gap(account: account_lib.Account, best: account_lib.Account) -> dict[str, float]:
  """Returns the gap by cause, in percent of the samples of `best`.

  Both must have trained. A cause in which `account` is ahead is negative; the
  sum is the gap in samples per node-second.
  """
  mine, others = _Pace.of(account), _Pace.of(best)
  trains = (mine.trains + others.trains) / 2
  rate = (mine.rate + others.rate) / 2
  layout = others.bare_rate - mine.bare_rate
  parts = {"layout": trains * layout, "redundancy": trains * (others.rate - mine.rate - layout)}
  shares, best_shares = account.node_time.shares(), best.node_time.shares()
  for cause, kinds in _KINDS.items():
    parts[cause] = rate * sum(shares[k] - best_shares[k] for k in kinds)
  whole = others.trains * others.rate
  return {cause: 100 * part / whole for cause, part in parts.items()}


def mean_gap(
    accounts: Sequence[account_lib.Account], best: Sequence[account_lib.Account]
) -> dict[str, float] | None:
  """Returns the mean over seeds; None if a run has not trained."""
  pairs = list(zip(accounts, best, strict=True))
  if not all(a.num_samples and b.num_samples for a, b in pairs):
    return None
  gaps = [split_gap(a, b) for a, b in pairs]
  return {c: statistics.fmean(gap[c] for gap in gaps) for c in CAUSES}


def worst_gap(
    accounts: Sequence[account_lib.Account], rivals: Sequence[Sequence[account_lib.Account]]
) -> float:
  """Returns the largest gap of a seed to its best rival, in percent of that."""
  seeds = zip(*rivals, strict=True)
  best = [max(rival.value for rival in of_seed) for of_seed in seeds]
  pairs = zip(accounts, best, strict=True)
  return max(100 * (1 - a.value / b) if b else 0.0 for a, b in pairs)
