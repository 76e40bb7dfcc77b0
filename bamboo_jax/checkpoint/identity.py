"""Tells the checkpoints of a run from those of other runs."""

from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import json as json_lib

UNKNOWN = "unknown"  # A value that a checkpoint does not contain.
# Prefixes of options that a run cannot change, with the size of a batch.
_IDENTIFYING = (
    *("seed", "model.", "data.", "pipeline.num_pipelines"),
    *("pipeline.num_microbatches", "pipeline.microbatch_size"),
)
# Those whose change alters the results of training.
_MEANT = (
    *("model.", "recovery.drop"),
    *(
        f"optimizer.{field.name}"
        for field in dataclasses.fields(config_lib.OptimizerSection)
        if field.name != "most_skipped_steps"  # It ends a run.
    ),
)
_LATER_BITS = "later steps can differ in bits from a run without the change"


@dataclasses.dataclass(frozen=True)
class ChangedSetting:
  """A setting with another value than in the run that wrote a checkpoint.

  Attributes:
    key: Option of the config, or setting of the environment; or, separated by
      commas, all settings that the checkpoint does not record.
    old: Value in the checkpoint, or `UNKNOWN`.
    new: Value now.
    changes_bits: Whether parameters will differ from those of a run without the
      change.
  """

  key: str
  old: Any
  new: Any
  changes_bits: bool

  def render(self) -> str:
    """Returns the change as a line of text."""
    if self.old == UNKNOWN:
      return (
          f"changed={UNKNOWN}: the checkpoint does not record {self.key}; if "
          "they differ, later steps can differ in bits."
      )
    then = f"; {_LATER_BITS}." if self.changes_bits else ""
    return f"changed={self.key} old={self.old!r} new={self.new!r}{then}"


@dataclasses.dataclass(frozen=True)
class RunIdentity:
  """The facts that must not change when a run resumes from a checkpoint.

  Attributes:
    model: Plain JSON values that identify the model.
    data: Plain JSON values that identify the samples.
    rounding: Plain JSON values of settings that may change, but change bits.
    config: Plain JSON values of all options, by dotted name; entries of
      `rounding` take precedence.
  """

  seed: int
  batch_size: int
  model: Mapping[str, Any]
  data: Mapping[str, Any]
  rounding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    for key, value in dataclasses.asdict(self).items():
      try:
        same = json.loads(json.dumps(value)) == value
      except TypeError:
        same = False
      if not same:
        raise ValueError(f"{key} must be plain JSON values (no tuples, no arrays), got {value!r}.")

  def describe(self, step: base.StepId) -> dict[str, Any]:
    """Returns the description for a checkpoint after `step` steps."""
    return dataclasses.asdict(self) | {"samples_seen": step * self.batch_size}

  def check(
      self, meta: Mapping[str, Any], *, step: base.StepId, where: str
  ) -> tuple[ChangedSetting, ...]:
    """Returns the permitted differences between this run and a checkpoint.

    `meta` is its description, with at least the keys of `describe`. Raises
    `base.CheckpointError` if it is of another run.
    """
    differing = lambda old, new: [
        key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)
    ]
    wanted = {k: v for k, v in self.describe(step).items() if k not in ("rounding", "config")}
    old, new = (json_lib.flatten({k: tree.get(k) for k in wanted}) for tree in (meta, wanted))
    differences = [
        f"it has {key}={old.get(key)!r}, this one has {new.get(key)!r}"
        for key in differing(old, new)
    ]
    if differences:
      there = meta.get("config", {})
      options = [
          f"config.{key} is {there[key]!r} there, {here!r} here"
          for key, here in self.config.items()
          if key.startswith(_IDENTIFYING) and there.get(key, here) != here
      ]
      raise base.CheckpointError(
          f"The checkpoint of step {step} in {where} is of another run: "
          f"{'; '.join((options or differences)[:3])}. Choose another workdir, "
          "or the former config."
      )
    there, config = meta.get("rounding", {}), meta.get("config")
    unknown = ["config"] * bool(self.config and config is None)
    unknown += [key for key, value in self.rounding.items() if key not in there and value != {}]
    config = self.config if config is None else config
    old, new = json_lib.flatten(there), json_lib.flatten(self.rounding)
    changes = [
        ChangedSetting(key, old[key], new[key], changes_bits=True)
        for key in differing(old, new)
        if key in old and key in new
    ]
    changes += [
        ChangedSetting(key, config.get(key), self.config.get(key), key.startswith(_MEANT))
        for key in differing(config, self.config)
        if key not in self.rounding
    ]
    if unknown:
      changes.append(ChangedSetting(", ".join(unknown), UNKNOWN, None, True))
    return tuple(changes)
