"""A pipeline to compare modes of redundancy.

configs/bench_redundancy.py        that of `bench_peer`
configs/bench_redundancy.py:paced  4 paced stages, passes with 30 % jitter

`bamboo ablate --interleave` runs all modes in turns.
"""

import ml_collections

from bamboo_jax.configs import bench_peer, paced


def get_config(kind: str = "") -> ml_collections.ConfigDict:
  """Returns the configuration of the comparison; `kind` is empty or paced."""
  if kind not in ("", "paced"):
    raise ValueError(f"The kind of bench_redundancy is 'paced', got {kind!r}.")
  config = paced.get_config("1x4") if kind else bench_peer.get_config()
  if kind:
    config.model.options.jitter = 0.3
    config.optimizer.clip_norm = None
  config.redundancy.mode = "eager"
  return config
