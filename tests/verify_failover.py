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
import statistics
import sys
import time

from absl import flags
import tqdm

from bamboo_jax.launch import cli
from bamboo_jax.plan.times import pauses as pauses_lib
from tests.schedule.verify import exhaustive

_NUM_STAGES = flags.DEFINE_integer("num_stages", 4, "Stages.", 1)
_NUM_MICROBATCHES = flags.DEFINE_integer("num_microbatches", 4, "Microbatches of the step.", 1)
_VICTIMS = flags.DEFINE_integer("victims", 1, "Nodes that die at once.", 1)
_SECOND_DEATHS = flags.DEFINE_integer(
    "second_deaths",
    0,
    "After one in so many deaths (0: none) each node that is left dies too, at "
    "every cut of the rest of the step.",
    0,
)
_NUM_CUTS = flags.DEFINE_integer("num_cuts", None, "Random cuts instead of all, this many.", 1)
_SEED = flags.DEFINE_integer("seed", 0, "Of random cuts.")
_MODES = flags.DEFINE_list("modes", ["lazy", "bubble", "eager"], "Modes of redundancy.")
_LOST_BEFORE = flags.DEFINE_list(
    "lost_before", [], "Nodes that have died in earlier steps, in this order."
)

_NUM_PIPELINES = flags.DEFINE_list(
    "num_pipelines", [], "Over how many pipelines what is owed is dealt."
)


def main() -> None:
  """Checks all modes; prints a line for each."""
  owners = exhaustive.owners_after(_NUM_STAGES.value, _LOST_BEFORE.value)
  num_nodes = len(set(owners))
  if _VICTIMS.value > num_nodes:
    raise ValueError(
        f"--victims must be at most {num_nodes}, the number of nodes, got " f"{_VICTIMS.value}."
    )
  counts = (
      f"owners={','.join(map(str, owners))} "
      f"microbatches={_NUM_MICROBATCHES.value} victims={_VICTIMS.value}"
  )
  if _NUM_PIPELINES.value:
    for mode in _MODES.value:
      _show_prices(mode, owners)
    return
  for mode in _MODES.value:
    start = time.process_time()
    tallies = exhaustive.verify_deaths(
        exhaustive.Step.uniform(mode=mode, owners=owners, num_microbatches=_NUM_MICROBATCHES.value),
        num_victims=_VICTIMS.value,
        num_cuts=_NUM_CUTS.value,
        second_every=_SECOND_DEATHS.value,
        seed=_SEED.value,
    )
    bar = tqdm.tqdm(tallies, desc=mode, disable=not sys.stderr.isatty())
    (tally,) = collections.deque(bar, maxlen=1)
    secs = time.process_time() - start
    print(f"mode={mode} {counts}: {tally}; {secs:.1f} s of processor time")


def _show_prices(mode: str, owners: Sequence[int]) -> None:
  step = exhaustive.Step.uniform(mode=mode, owners=owners, num_microbatches=_NUM_MICROBATCHES.value)
  common = dict(
      roles=step.roles, microbatches=step.microbatches, costs=step.costs, in_flight=step.in_flight
  )
  timeline = exhaustive.plan_rows(mode, **common).timeline
  means = {}
  for count in (None, *map(int, _NUM_PIPELINES.value)):
    found = pauses_lib.predict_pauses(timeline, **common, num_times=8, num_pipelines=count)
    means[count] = statistics.mean(found)
    print(
        f"mode={mode} step_ms={timeline.span_ms:.1f} "
        f"pipelines={count or 'alone'} longer_ms={means[count]:.1f} "
        f"ratio={means[count] / means[None]:.2f}"
    )


if __name__ == "__main__":
  cli.run(main)
