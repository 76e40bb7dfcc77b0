r"""Checks that a step survives deaths wherever they happen; no device needed.

python -m launch.verify_failover --num_stages=4 --num_microbatches=4
python -m launch.verify_failover --num_stages=4 --num_microbatches=4 \
  --victims=2 --second_deaths=50
python -m launch.verify_failover --num_stages=8 --num_microbatches=32 \
  --num_cuts=1000 --modes=eager --lost_before=2,5

For every cut of the step, transfers that are half done included, and all
choices of victims, the rest of the step is planned and played. One line per
mode of redundancy says how many cases were checked. The first case that fails
ends the command with a traceback.
"""

from collections.abc import Sequence
import sys
import time

from absl import flags
import tqdm

from bamboo_jax.schedule import failover
from bamboo_jax.schedule.verify import exhaustive
from launch import cli

_NUM_STAGES = flags.DEFINE_integer(
    "num_stages", 4, "Stages of the pipeline.", lower_bound=1
)
_NUM_MICROBATCHES = flags.DEFINE_integer(
    "num_microbatches", 4, "Microbatches of the step.", lower_bound=1
)
_VICTIMS = flags.DEFINE_integer(
    "victims", 1, "How many nodes die at once.", lower_bound=1
)
_SECOND_DEATHS = flags.DEFINE_integer(
    "second_deaths",
    0,
    "After one in so many different deaths, each node that is left dies at "
    "every cut of the rest of the step; 0 for never, 1 for always.",
    lower_bound=0,
)
_NUM_CUTS = flags.DEFINE_integer(
    "num_cuts", None, "Random cuts instead of all, this many.", lower_bound=1
)
_SEED = flags.DEFINE_integer("seed", 0, "Of random cuts.")
_MODES = flags.DEFINE_list(
    "modes", ["lazy", "bubble", "eager"], "Modes of redundancy."
)
_LOST_BEFORE = flags.DEFINE_list(
    "lost_before",
    [],
    "Nodes that have died in earlier steps, in this order, each followed by "
    "new replicas; so the others own several stages.",
)


def main(argv: Sequence[str]) -> None:
  """Checks all modes; prints a line for each."""
  cli.check_no_arguments(argv)
  owners = _owners()
  num_nodes = len(set(owners))
  if _VICTIMS.value > num_nodes:
    raise ValueError(
        f"--victims must be at most {num_nodes}, the number of nodes, got "
        f"{_VICTIMS.value}."
    )
  for mode in _MODES.value:
    step = exhaustive.Step.uniform(
        mode=mode, owners=owners, num_microbatches=_NUM_MICROBATCHES.value
    )
    start = time.process_time()
    tally = _verify(step)
    print(
        f"mode={mode} owners={','.join(map(str, owners))} "
        f"microbatches={_NUM_MICROBATCHES.value} victims={_VICTIMS.value}: "
        f"{tally}; {time.process_time() - start:.1f} s of processor time",
        flush=True,
    )


def _owners() -> tuple[int, ...]:
  """Returns the owners of the stages after the deaths of earlier steps."""
  roles = failover.Roles.initial(range(_NUM_STAGES.value))
  for name in _LOST_BEFORE.value:
    if not name.isdigit() or int(name) not in roles.owners:
      raise ValueError(
          f"--lost_before must name nodes of {sorted(roles.nodes)}, got "
          f"{name!r}."
      )
    if len(roles.nodes) == 1:
      raise ValueError(f"--lost_before must leave a node, got {name} as well.")
    roles, _ = failover.fail_over(roles, {}, {int(name)})
    roles = failover.Roles.initial(roles.owners)
  return roles.owners


def _verify(step: exhaustive.Step) -> exhaustive.Tally:
  """Returns the tally of one mode; shows progress on a terminal."""
  tallies = exhaustive.verify_deaths(
      step,
      num_victims=_VICTIMS.value,
      num_cuts=_NUM_CUTS.value,
      second_every=_SECOND_DEATHS.value,
      seed=_SEED.value,
  )
  with tqdm.tqdm(
      tallies,
      desc=step.mode,
      total=_NUM_CUTS.value,
      unit="cut",
      disable=not sys.stderr.isatty(),
  ) as bar:
    for tally in bar:
      bar.set_postfix_str(f"{tally.plans} plans", refresh=False)
  return tally


if __name__ == "__main__":
  cli.run(main)
