"""Simulated policies of some rungs."""

from bamboo_jax import config as config_lib

ALL = ("shadow", "reroute", "reconfigure", "checkpoint")


def make_config(rungs=ALL, *, num_stages=4, num_microbatches=1, **changes) -> config_lib.Config:
  """Returns the config of a policy with these rungs; in `changes`, `__` stands for a dot."""
  base = {
      "redundancy.mode": "bubble" if "shadow" in rungs else "none",
      **{f"recovery.{rung}": rung in rungs for rung in (*ALL[1:], "drop")},
      "pipeline.layout": "grid",
      "pipeline.num_stages": num_stages,
      "pipeline.num_pipelines": 1,
      "pipeline.num_microbatches": num_microbatches,
      "study.reduction": "ring",
      "study.overlap": "drain",
      "study.duplex": "full",
  }
  given = {name.replace("__", "."): value for name, value in changes.items()}
  return config_lib.Config().changed(base | given)
