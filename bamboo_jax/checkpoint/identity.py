"""Tells the checkpoints of a run from those of other runs."""

from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from absl import logging

from bamboo_jax import base


@dataclasses.dataclass(frozen=True)
class Identity:
  """What must not change when a run goes on from a checkpoint.

  Attributes:
    batch_size: Samples per step.
    model: Plain JSON values that tell the model from any other.
    data: Plain JSON values that tell the samples from any others.
    rounding: Plain JSON values of settings that may change, and bits with them.
  """

  seed: int
  batch_size: int
  model: Mapping[str, Any]
  data: Mapping[str, Any]
  rounding: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    for key, value in dataclasses.asdict(self).items():
      try:
        same = json.loads(json.dumps(value)) == value
      except TypeError:
        same = False
      if not same:
        raise ValueError(
            f"{key} must be plain JSON values (no tuples, no arrays), got "
            f"{value!r}."
        )

  def describe(self, step: int) -> dict[str, Any]:
    """Returns what a checkpoint after `step` steps says of its run."""
    samples_seen = step * self.batch_size
    return dataclasses.asdict(self) | {"samples_seen": samples_seen}

  def check(self, meta: Mapping[str, Any], *, step: int, where: str) -> None:
    """Raises `base.CheckpointError` if `meta` is of another run.

    `meta` may say more than `describe`, and another `rounding`, of which this
    warns.
    """
    wanted = self.describe(step)
    rounding = wanted.pop("rounding")
    found = {key: meta.get(key) for key in wanted}
    differences = _differences(found, wanted)
    if differences:
      raise base.CheckpointError(
          f"The checkpoint of step {step} in {where} is of another run: "
          f"{'; '.join(differences[:3])}. Choose another workdir, or the "
          "former config."
      )
    if others := _differences(meta.get("rounding", rounding), rounding):
      logging.warning(
          "After the checkpoint of step %d bits will not be those of the run "
          "that has made it: %s.",
          *(step, "; ".join(others)),
      )


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> list[str]:
  """Returns what differs between two trees of plain values, entry by entry."""
  differences = []
  for key in sorted(found.keys() | wanted.keys()):
    there, here = found.get(key), wanted.get(key)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
      differences += _differences(there, here, f"{prefix}{key}.")
    elif there != here:
      differences.append(
          f"it has {prefix}{key}={there!r}, this one has {here!r}"
      )
  return differences
