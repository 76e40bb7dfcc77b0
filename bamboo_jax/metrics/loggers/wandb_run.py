"""Weights & Biases, behind the extra `wandb`.

All processes that write a run, one after another, continue one run there: its
name is kept in the workdir. Steps are a metric, as a run of W&B only counts
upwards, and training may go back to a checkpoint. Project, account, and whether
to send or keep (WANDB_MODE=offline) are those of W&B's environment variables.
"""

from collections.abc import Mapping
import pathlib
import secrets
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import extras
from bamboo_jax.metrics import logger as logger_lib

_FILE = "wandb_id"
_PROJECT = "bamboo"  # Unless WANDB_PROJECT names one.
_INIT_SECS = 10.0  # For an answer of the server, in the thread of the logger.


class WandbRun:
  """A `logger.Logger`; evaluations are metrics, and recoveries are counted."""

  def __init__(self, workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Continues the run of a workdir, or begins it.

    Raises `base.MissingExtraError` if the extra is not installed, and whatever
    W&B raises without account or network.
    """
    wandb = extras.load("wandb", extra="wandb", what="A run of W&B")
    settings = wandb.Settings(console="off", silent=True, init_timeout=_INIT_SECS)
    self._run = wandb.init(
        project=settings.project or _PROJECT,
        name=workdir.resolve().name,
        id=_find_id(workdir),
        resume="allow",
        dir=str(workdir),
        config=dict(config),
        settings=settings,
    )
    self._run.define_metric("step")
    self._run.define_metric("*", step_metric="step")
    self._num_recoveries = 0

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    self._run.log({"step": step, **logger_lib.numbers_of(metrics)})

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    """Logs evaluations as `eval/NAME`, and the number of recoveries."""
    if name == "eval":
      shown = logger_lib.numbers_of(values)
      self._run.log({"step": step} | {f"eval/{k}": v for k, v in shown.items()})
    elif name == "recovery":
      self._num_recoveries += 1
      self._run.log({"step": step, "recoveries": self._num_recoveries})

  def close(self) -> None:
    self._run.finish()


def _find_id(workdir: pathlib.Path) -> str:
  path = workdir / _FILE
  if not path.exists():
    base.write_atomically(path, secrets.token_hex(8) + "\n")
  return path.read_text().strip()
