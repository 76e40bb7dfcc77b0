"""Deaths of random nodes at random times, each followed by a replacement."""

import random

from bamboo_jax.faults import faults as faults_lib


def make_random_kills(
    num_kills: int,
    *,
    seed: int,
    num_steps: int,
    num_pipelines: int,
    num_stages: int,
) -> tuple[faults_lib.Fault, ...]:
  """Returns kills spread over a run, at any time in a random step each.

  In one of the next steps a node joins, so that the next kill finds all places
  taken again. At least two steps for each kill, and one more, or it raises
  `ValueError`.
  """
  if num_kills < 1:
    raise ValueError(f"--random_kills must be at least 1, got {num_kills}.")
  if num_steps < 2 * num_kills + 1:
    raise ValueError(
        f"--random_kills={num_kills} takes at least {2 * num_kills + 1} steps, "
        f"got config.num_steps={num_steps}."
    )
  rng = random.Random(seed)
  faults = []
  for i in range(num_kills):
    first = i * (num_steps - 1) // num_kills
    last = (i + 1) * (num_steps - 1) // num_kills - 1
    step = rng.randint(first, last - 1)
    place = f"{rng.randrange(num_pipelines)}/{rng.randrange(num_stages)}"
    line = 2 * i + 2  # Below the names of the columns.
    faults += [
        faults_lib.Fault(step, place, line=line),
        faults_lib.Fault(
            rng.randint(step + 1, last), "", kind="join", line=line + 1
        ),
    ]
  return tuple(faults)
