"""Policies on one trace, or on generated ones at several preemption rates.

A model like GPT-2 medium on 48 nodes in three zones, with the costs of one GPU each and
a network of 10 Gbit/s. What is modelled: `docs/research/simulator.md`.

configs/sim/compare.py         a day
configs/sim/compare.py:quick   8 hours
configs/sim/compare.py:single  11 nodes, one pipeline needs most of them
"""

import ml_collections

from bamboo_jax import sim
from bamboo_jax.configs import default


def get_config(variant: str = "") -> ml_collections.ConfigDict:
  """Returns the configuration; see above for `variant`."""
  if variant not in ("", "quick", "single"):
    raise ValueError(f"A variant must be quick or single, got {variant}.")
  config = default.get_config()
  config.update_from_flattened_dict(sim.JOB)
  config.study.trace.update(
      nodes_per_zone=(16, 16, 16), bulk_sizes=((1, 5.0), (2, 3.0), (4, 2.0)), zone_correlation=0.05
  )
  if variant == "quick":
    config.study.trace.hours = 8.0
  if variant == "single":
    config.study.trace.nodes_per_zone = (4, 4, 3)
    config.plan.memory_limit_gib = 1.6
    config.recovery.num_failures = 0  # There is no second pipeline to lose.
  return config
