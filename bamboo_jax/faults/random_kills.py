"""Deaths of random nodes at random times, each followed by a replacement."""

from collections.abc import Sequence
import random

from bamboo_jax import base
from bamboo_jax.faults import faults as faults_lib


def make_random_kills(
    num_kills: int,
    *,
    seed: int,
    num_steps: int,
    num_pipelines: int,
    num_stages: int,
    kinds: Sequence[str] = ("kill",),
    zones: Sequence[str] = ("a",),
) -> tuple[faults_lib.Fault, ...]:
  """Returns kills spread over a run, each at any time in a random step.

  As many nodes as died join in a later step, so that every place has a node
  again before the next kill.

  Args:
    num_kills: From 1 to `(num_steps - 1) / 2`.
    kinds: Kinds to draw from, those of `faults.KINDS` except "join". No node
      joins after "all", because the agents then restart their workers, nor
      after "slow", which ends in the step in which a node would join.

  Raises:
    ValueError: `num_kills` or a kind is out of range.
  """
  allowed = [kind for kind in faults_lib.KINDS if kind != "join"]
  for kind in kinds:
    if kind not in allowed:
      raise ValueError(base.suggest(kind, allowed, what="value of --kinds"))
  if num_kills < 1:
    raise ValueError(f"--random_kills must be at least 1, got {num_kills}.")
  if num_steps < 2 * num_kills + 1:
    raise ValueError(
        f"--random_kills={num_kills} takes at least {2 * num_kills + 1} steps, "
        f"got config.num_steps={num_steps}."
    )
  rng = random.Random(seed)
  faults: list[faults_lib.Fault] = []
  for i in range(num_kills):
    first = i * (num_steps - 1) // num_kills
    last = (i + 1) * (num_steps - 1) // num_kills - 1
    step = rng.randint(first, last - 1)
    node = f"{rng.randrange(num_pipelines)}/{rng.randrange(num_stages)}"
    kind, num_joins = rng.choice(kinds), 1
    if kind == "zone":
      node = rng.choice(zones)
      num_joins = -(num_pipelines * num_stages // -len(zones))
    elif kind in ("leader", "all"):
      node, num_joins = "", int(kind == "leader")
    elif kind == "slow":
      num_joins = 0
    join = rng.randint(step + 1, last)
    for s, n, k in [(step, node, kind), *[(join, "", "join")] * num_joins]:
      line = len(faults) + 2  # Below the names of the columns.
      until = join if k == "slow" else None
      faults.append(faults_lib.Fault(s, n, kind=k, line=line, until=until))
  return tuple(faults)
