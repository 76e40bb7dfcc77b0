r"""Checks that a step survives deaths wherever they happen; no device needed.

python -m tests.verify_failover --victims=2 --second_deaths=50
python -m tests.verify_failover --num_microbatches=8 --num_pipelines=2,4
python -m tests.verify_failover --num_stages=8 --num_microbatches=32 \
  --num_cuts=1000 --modes=eager --lost_before=2,5

For every cut of the step, transfers that are half done included, and all
choices of victims, the rest of the step is planned and played. One line per
mode of redundancy says how many cases were checked. The first that fails ends
the command with a traceback. After --lost_before, nodes own several stages.

With --num_pipelines it says instead by how many ms a death makes its step
longer, if the shadow alone computes what is owed, and if it is dealt over so
many pipelines: means over all victims and eight times. A forward pass takes
1 ms.
"""

import collections
from collections.abc import Sequence
import dataclasses
import statistics
import sys
import time

import tqdm

from bamboo_jax.cli import flagset
from bamboo_jax.launch import cli
from bamboo_jax.plan.times import pauses as pauses_lib
from bamboo_jax.schedule import redundancy
from tests.schedule.verify import exhaustive


@dataclasses.dataclass(frozen=True)
class VerifyFlags:
  """Which steps, and which deaths."""

  num_stages: int = flagset.flag(4, "Stages.", least=1)
  num_microbatches: int = flagset.flag(4, "Microbatches of the step.", least=1)
  victims: int = flagset.flag(1, "Nodes that die at once.", least=1)
  second_deaths: int = flagset.flag(
      0,
      "After one in so many deaths (0: none) each node that is left dies too, at "
      "every cut of the rest of the step.",
      least=0,
  )
  num_cuts: int | None = flagset.flag(None, "Random cuts instead of all, this many.", least=1)
  seed: int = flagset.flag(0, "Of random cuts.")
  modes: tuple[str, ...] = flagset.flag(
      ("lazy", "bubble", "eager"), "Modes of redundancy.", choices=redundancy.MODES
  )
  lost_before: tuple[str, ...] = flagset.flag(
      (), "Nodes that have died in earlier steps, in this order."
  )
  num_pipelines: tuple[int, ...] = flagset.flag(
      (), "Over how many pipelines what is owed is dealt."
  )


def main(flags: VerifyFlags) -> None:
  """Checks all modes; prints a line for each."""
  owners = exhaustive.owners_after(flags.num_stages, flags.lost_before)
  num_nodes = len(set(owners))
  if flags.victims > num_nodes:
    raise ValueError(
        f"--victims must be at most {num_nodes}, the number of nodes, got " f"{flags.victims}."
    )
  counts = (
      f"owners={','.join(map(str, owners))} "
      f"microbatches={flags.num_microbatches} victims={flags.victims}"
  )
  if flags.num_pipelines:
    for mode in flags.modes:
      _show_prices(flags, mode, owners)
    return
  for mode in flags.modes:
    start = time.process_time()
    tallies = exhaustive.verify_deaths(
        exhaustive.Step.uniform(mode=mode, owners=owners, num_microbatches=flags.num_microbatches),
        num_victims=flags.victims,
        num_cuts=flags.num_cuts,
        second_every=flags.second_deaths,
        seed=flags.seed,
    )
    bar = tqdm.tqdm(tallies, desc=mode, disable=not sys.stderr.isatty())
    (tally,) = collections.deque(bar, maxlen=1)
    secs = time.process_time() - start
    print(f"mode={mode} {counts}: {tally}; {secs:.1f} s of processor time")


def _show_prices(flags: VerifyFlags, mode: str, owners: Sequence[int]) -> None:
  step = exhaustive.Step.uniform(mode=mode, owners=owners, num_microbatches=flags.num_microbatches)
  common = dict(
      roles=step.roles, microbatches=step.microbatches, costs=step.costs, in_flight=step.in_flight
  )
  timeline = exhaustive.plan_rows(mode, **common).timeline
  means = {}
  for count in (None, *flags.num_pipelines):
    found = pauses_lib.predict_pauses(timeline, **common, num_times=8, num_pipelines=count)
    means[count] = statistics.mean(found)
    print(
        f"mode={mode} step_ms={timeline.span_ms:.1f} "
        f"pipelines={count or 'alone'} longer_ms={means[count]:.1f} "
        f"ratio={means[count] / means[None]:.2f}"
    )


if __name__ == "__main__":
  cli.run(main)
