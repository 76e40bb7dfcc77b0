"""Checks a config for values that are never valid."""

import functools
import math
from typing import Any

import jax
import ml_collections

from bamboo_jax import base
from bamboo_jax.metrics import logger as logger_lib
from bamboo_jax.metrics import plots
from bamboo_jax.recovery import slowness
from bamboo_jax.train import sums as sums_lib
from bamboo_jax.train.record import xprof
from bamboo_jax.train.setup import optimizers

# Least allowed values.
_LEAST = {
    "num_steps": 0,
    "pipeline.num_pipelines": 1,
    "pipeline.num_stages": 1,
    "pipeline.num_microbatches": 1,
    "pipeline.microbatch_size": 1,
    "pipeline.num_shares": 1,
    "pipeline.segment_ticks": 1,
    "node.mesh.data": 1,
    "node.mesh.tensor": 1,
    "redundancy.overrun": 0,
    "redundancy.spares": 0,
    "recovery.num_failures": 0,
    "recovery.horizon_secs": 0,
    "redundancy.check_every_steps": 0,
    "plan.memory_limit_gib": 0,
    "data.prefetch_steps": 0,
    "optimizer.learning_rate": 0,
    "evaluate.every_steps": 0,
    "evaluate.num_microbatches": 1,
    "checkpoint.every_steps": 0,
    "checkpoint.keep": 1,
    "metrics.trace_steps": 0,
}

# Allowed values.
_CHOICES = {
    "optimizer.decay": optimizers.DECAYS,
    "optimizer.on_nonfinite": sums_lib.ON_NONFINITE,
    "pipeline.executor": ("rows", "spmd"),
    "pipeline.head": ("backward", "forward"),
    "pipeline.layout": ("depth", "templates", "grid"),
    "pipeline.ticks": ("paired", "single"),
    "recovery.slow": slowness.RESPONSES,
    "redundancy.refresh": ("gradient", "state"),
    "redundancy.slots": ("device", "host"),
}

# Values that executor='spmd' rejects, and why.
_ALIKE = "one program for all nodes needs equal pipelines."
_NEEDS_ROWS = (
    ("pipeline.layout", ("templates", "grid"), _ALIKE),
    ("model.name", ("paced",), _ALIKE),
    ("pipeline.num_stages", (1,), "one program for all needs at least 2."),
    (
        "recovery.slow",
        ("deal", "remove"),
        "passes are not measured; take 'report'.",
    ),
)


def check_config(config: ml_collections.ConfigDict) -> None:
  """Raises `ValueError` for a value that is never valid."""
  if jax.config.jax_enable_x64:  # Arrays of the state would be float64.
    raise ValueError(
        "JAX_ENABLE_X64 is set, but parameters are float32: unset it."
    )
  base.check_none(config)
  for name, least in _LEAST.items():
    value = _get(config, name)
    if value is not None and not least <= value < math.inf:
      raise ValueError(f"config.{name} must be at least {least}, got {value}.")
  clip_norm = config.optimizer.clip_norm
  if clip_norm is not None and not clip_norm > 0:
    raise ValueError(
        f"config.optimizer.clip_norm must be above 0, got {clip_norm}."
    )
  for name, allowed in _CHOICES.items():
    if (value := _get(config, name)) not in allowed:
      what = f"value of config.{name}"
      raise ValueError(base.suggest(value, allowed, what=what))
  xprof.parse_steps(config.metrics.profile_steps)
  logger_lib.parse_names(config.metrics.logger)  # Fails before nodes start.
  plots.parse_formats(config.metrics.figure_format)
  mesh, size = config.node.mesh, config.pipeline.microbatch_size
  if size % mesh.data:
    raise ValueError(
        f"config.node.mesh.data={mesh.data} must divide "
        f"config.pipeline.microbatch_size={size}."
    )
  pipeline = config.pipeline
  if pipeline.executor == "spmd":
    if mesh.data * mesh.tensor > 1:
      raise ValueError("config.node.mesh needs executor='rows'.")
    for name, refused, why in _NEEDS_ROWS:
      if (value := _get(config, name)) in refused:
        raise ValueError(
            f"config.{name}={value!r} needs executor='rows': {why}"
        )
    if pipeline.num_shares not in (None, pipeline.num_pipelines):
      raise ValueError(
          f"config.pipeline.num_shares={pipeline.num_shares} must be "
          f"num_pipelines={pipeline.num_pipelines}, or needs executor='rows': "
          f"{_ALIKE}"
      )


def _get(config: ml_collections.ConfigDict, name: str) -> Any:
  return functools.reduce(lambda part, key: part[key], name.split("."), config)
