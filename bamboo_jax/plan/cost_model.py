"""Costs of layers and links: the input of every planner.

A profile holds one `LayerCost` per layer, for one microbatch on one device, and
the speed of links. It is measured once per model, shapes and device, or
estimated, and then saved; its fingerprint prevents its use for others.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import json
import math
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib, packaged
from bamboo_jax.schedule import costs as costs_lib

_VERSION = 1  # Version of the JSON format.


def _check_units(fact: Any) -> None:
  """Raises `ValueError` unless times, sizes and rates are in range.

  Their types are those of the annotations, which `from_json` checks.
  """
  for field in dataclasses.fields(fact):
    value = getattr(fact, field.name)
    if value is None or not field.name.endswith(("_bytes", "_ms")):
      continue
    is_rate = field.name.endswith("_per_ms")
    if not math.isfinite(value) or value < 0 or (is_rate and value == 0):
      least = "> 0" if is_rate else ">= 0"
      raise ValueError(f"{field.name} must be a finite number {least}, got {value!r}.")


@dataclasses.dataclass(frozen=True)
class LayerCost:
  """Cost of one layer, for one microbatch.

  Attributes:
    name: Unique in the model.
    backward_ms: Time of the backward pass, recomputation included.
    update_ms: Time of its optimizer update, once per step.
    slot_bytes: Size of its optimizer slots.
    activation_bytes: Size of its output, and of the gradient with respect to
      it.
    residual_bytes: Size of its residuals; its input counts if the backward pass
      reads it.
    norm_ms: Time to add up the squares of its gradient, once per step.
    redundant_ms: Time of a redundant forward pass, with the copy of its
      residuals to host memory; None: that of its forward pass.
    working_bytes: Temporary memory of a program of its unit, without arguments
      and results.
    copy_bytes: Size of the copies of its weights that are cast to the dtype of
      its products; 0 if that is their own.
    frozen_bytes: Size of those parameters that are not trained.
  """

  name: str
  forward_ms: float
  backward_ms: float
  update_ms: float
  parameter_bytes: int
  slot_bytes: int
  activation_bytes: int
  residual_bytes: int
  norm_ms: float = 0.0
  redundant_ms: float | None = None
  working_bytes: int = 0
  copy_bytes: int = 0
  frozen_bytes: int = 0

  def __post_init__(self) -> None:
    _check_units(self)

  @property
  def gradient_bytes(self) -> int:
    """Size of the gradients of its parameters."""
    return self.parameter_bytes - self.frozen_bytes


@dataclasses.dataclass(frozen=True)
class TieCost:
  """A parameter shared by two layers, both of which hold a copy.

  The layer `owner` comes before the layer `user` in the model.
  """

  owner: str
  user: str
  tied_bytes: int

  def __post_init__(self) -> None:
    _check_units(self)


@dataclasses.dataclass(frozen=True)
class Profile:
  """Costs of the layers of a model on a kind of device.

  Attributes:
    layers: In model order.
    link_latency_ms: Fixed time of a transfer between two nodes.
    link_bytes_per_ms: Bandwidth between two nodes.
    reduce_latency_ms: Fixed time of a sum over nodes.
    reduce_bytes_per_ms: Rate at which a node sends gradients for a sum.
    dispatch_ms: Overhead of an instruction in a row over its program alone.
    measured: Whether the times were measured; else they are estimates.
    fingerprint: Model, shapes, dtype, device and versions, as plain JSON
      values. Copied; must not be changed.
    vote_ms: Time of the vote of all nodes on a step.
    host_bytes_per_ms: Rate of the link between device and host memory; None if
      `redundant_ms` of layers has the time of copies to it.
    regions: Those of the nodes of a run, between which transfers take longer; not in files.
  """

  layers: tuple[LayerCost, ...]
  link_latency_ms: float
  link_bytes_per_ms: float
  reduce_latency_ms: float
  reduce_bytes_per_ms: float
  dispatch_ms: float
  measured: bool
  fingerprint: Mapping[str, Any]
  vote_ms: float = 0.0
  ties: tuple[TieCost, ...] = ()
  host_bytes_per_ms: float | None = None
  regions: costs_lib.Regions = costs_lib.ALIKE

  def __post_init__(self) -> None:
    _check_units(self)
    if not self.layers:
      raise ValueError("layers must not be empty.")
    places = {layer.name: i for i, layer in enumerate(self.layers)}
    if len(places) < len(self.layers):
      raise ValueError(
          "layers must have unique names, got " f"{', '.join(layer.name for layer in self.layers)}."
      )
    for tie in self.ties:
      for name in (tie.owner, tie.user):
        if name not in places:
          raise ValueError(base.suggest(name, places, what="tied layer"))
      if places[tie.owner] >= places[tie.user]:
        raise ValueError(f"The owner of a tie must come before its user, got {tie}.")
    object.__setattr__(self, "fingerprint", _plain(self.fingerprint))

  def on_mesh(self, num_devices: int) -> "Profile":
    """Returns the costs of a node whose `num_devices` share all passes evenly.

    The best case: communication between these devices is not counted.
    """
    if num_devices == 1:
      return self
    share = lambda cost: {
        name: value and value / num_devices
        for name, value in vars(cost).items()
        if name.endswith("_ms")
    }
    layers = tuple(dataclasses.replace(layer, **share(layer)) for layer in self.layers)
    return dataclasses.replace(self, layers=layers, measured=False)

  def transfer_ms(self, num_bytes: int) -> float:
    """Returns the time to move `num_bytes` from one node to another."""
    return self.link_latency_ms + num_bytes / self.link_bytes_per_ms

  def by_stage(self, bounds: Sequence[int]) -> list[tuple[LayerCost, ...]]:
    """Returns the costs of the layers of each stage; `bounds` are those of a partition."""
    if bounds[-1] != len(self.layers):
      raise ValueError(
          f"partition splits {bounds[-1]} layers, but the profile has {len(self.layers)}."
      )
    return [self.layers[first:last] for first, last in itertools.pairwise(bounds)]

  def stage_costs(self, bounds: Sequence[int]) -> costs_lib.StageCosts:
    """Returns the costs of stages, as schedules need them.

    Every pass and every transfer is charged one dispatch in addition. Raises
    `ValueError` for bounds of another number of layers.
    """
    stages = self.by_stage(bounds)

    def sums(value: Callable[[LayerCost], Any], start: Any = 0) -> tuple[Any, ...]:
      return tuple(start + sum(map(value, stage)) for stage in stages)

    sizes = tuple(stage[-1].activation_bytes for stage in stages)
    dispatch_ms = self.dispatch_ms
    return costs_lib.StageCosts(
        forward_ms=sums(lambda c: c.forward_ms, dispatch_ms),
        backward_ms=sums(lambda c: c.backward_ms, dispatch_ms),
        redundant_ms=sums(
            lambda c: c.forward_ms if c.redundant_ms is None else c.redundant_ms, dispatch_ms
        ),
        transfer_ms=tuple(dispatch_ms + self.transfer_ms(size) for size in sizes[:-1]),
        activation_bytes=sizes,
        residual_bytes=sums(lambda c: c.residual_bytes),
        regions=self.regions,
    )

  def place_residuals(
      self, bounds: Sequence[int], *, num_microbatches: int, free_bytes: Sequence[int] | None
  ) -> tuple[costs_lib.StageCosts, str]:
    """Returns costs of redundant passes, and where their residuals wait for a failover.

    They stay on the "device" if those of a whole step fit in its memory; else they
    are copied to the "host". Node `s` is the shadow of stage `s + 1`, the last node
    that of stage 0.

    Args:
      free_bytes: Device memory that each node does not need; None: no limit.
    """
    costs, rate = self.stage_costs(bounds), self.host_bytes_per_ms
    if rate is None:  # The costs have the copies already.
      return costs, "host"
    sizes, redundant_ms = costs.residual_bytes, costs.forward_ms
    fits = free_bytes is None or all(
        num_microbatches * size <= free
        for size, free in zip(sizes[1:] + sizes[:1], free_bytes, strict=True)
    )
    if not fits:
      pairs = zip(costs.forward_ms, sizes, strict=True)
      redundant_ms = tuple(ms + size / rate for ms, size in pairs)
    costs = dataclasses.replace(costs, redundant_ms=redundant_ms)
    return costs, "device" if fits else "host"

  def check_fingerprint(self, expected: Mapping[str, Any], *, where: str) -> None:
    """Raises `ValueError` unless this is a profile of `expected`.

    The message begins with `where`, and has both values of every key that differs; nested
    keys are dotted.
    """
    have = json_lib.flatten(self.fingerprint)
    want = json_lib.flatten(_plain(expected))
    differences = [
        f"{key}: have {_show(have, key)}, want {_show(want, key)}"
        for key in sorted(have.keys() | want.keys())
        if _show(have, key) != _show(want, key)
    ]
    if differences:
      what = "The profile is of another set-up"
      raise ValueError(f"{where}: {what}: {'; '.join(differences)}.")


def refresh_bytes(stage: Sequence[LayerCost], refresh: str) -> int:
  """Returns the bytes that bring the replica of a stage up to date."""
  return sum(c.gradient_bytes + (c.slot_bytes if refresh == "state" else 0) for c in stage)


def to_json(profile: Profile) -> str:
  """Returns the fields of `profile` and a version, as JSON text."""
  fields = {"version": _VERSION, **json_lib.to_plain(profile)}
  del fields["regions"]
  return json.dumps(fields, indent=1, allow_nan=False) + "\n"


def read_profile(path: str) -> Profile:
  """Returns the profile that `config.plan.profile` names: a file, or one of the package.

  Raises `ValueError` that names the option.
  """
  source = f"config.plan.profile={path}"
  try:
    text = packaged.find_file(path).read_text("utf-8-sig", "replace")
  except OSError as error:
    raise ValueError(f"{source}: {error.strerror}.") from error
  return from_json(text, source=source)


def from_json(text: str, *, source: str = "profile") -> Profile:
  """Returns the profile that `to_json` wrote; messages name its `source`.

  Strict, because a wrong profile would make a slow plan without a warning:
  `ValueError` names a field that is missing, unknown or of another type.
  """
  try:
    fields = json.loads(text)
  except ValueError as error:
    raise ValueError(f"{source} is not JSON: {error}.") from error
  if not isinstance(fields, dict):
    raise ValueError(f"{source} must hold a JSON object, got {fields!r:.40}.")
  version = fields.pop("version", None)
  if version != _VERSION:
    raise ValueError(
        f"{source}: version must be {_VERSION}, got {version!r}; measure a new " "profile."
    )
  if "regions" in fields:
    raise ValueError(f"{source} must have no regions: they follow from the zones of a run's nodes.")
  return json_lib.from_plain(Profile, fields, where=source)


def _plain(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a copy with plain JSON values, as if read from a file."""
  try:
    plain: dict[str, Any] = json.loads(json.dumps(dict(fingerprint), allow_nan=False))
    return plain
  except (TypeError, ValueError) as error:
    raise ValueError(f"fingerprint must consist of plain JSON values: {error}.") from error


def _show(values: Mapping[str, Any], key: str) -> str:
  return json.dumps(values[key]) if key in values else "nothing"
