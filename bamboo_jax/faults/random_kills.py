"""Deaths of random nodes at random times, each followed by a replacement."""

from collections.abc import Iterable
import random

from bamboo_jax.faults import cluster_file


def make_random_kills(
    num_kills: int,
    *,
    seed: int,
    num_steps: int,
    num_pipelines: int,
    num_stages: int,
) -> tuple[cluster_file.ClusterFault, ...]:
  """Returns kills spread over a run, at any time in a random step each.

  After each, at one of the next steps, a node joins, so that the next death
  finds all places taken again; see `cluster_file` for who is hit and when.

  Args:
    num_kills: Number of kills.
    seed: The same seed gives the same faults.
    num_steps: Steps of the run; at least two for each kill, and one more.
    num_pipelines: Number of pipelines.
    num_stages: Number of stages.

  Raises:
    ValueError: There are too few steps.
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
        cluster_file.ClusterFault(line, step, place, None, "kill"),
        cluster_file.ClusterFault(
            line + 1, rng.randint(step + 1, last), "", None, "join"
        ),
    ]
  return tuple(faults)


def render_csv(faults: Iterable[cluster_file.ClusterFault]) -> str:
  """Returns faults as a file that `cluster_file` reads."""
  lines = [",".join(cluster_file.COLUMNS)]
  for fault in faults:
    at = "" if fault.at is None else fault.at
    lines.append(f"{fault.step},{fault.node},{at},{fault.kind}")
  return "\n".join(lines) + "\n"
