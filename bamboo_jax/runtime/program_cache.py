"""Compiled programs, kept while nodes and plans change around them.

They depend only on kinds of units and on devices, so a new engine, or another
partition, finds them again.
"""

from collections.abc import Callable, Hashable
import operator
import threading
from typing import Any

import jax

from bamboo_jax.runtime import places, recent
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib

_MAX_OTHERS = 64  # With 250 mappings of memory each.


class ProgramCache:
  """The programs of one model; thread-safe.

  `make_kind` makes the programs of a kind of units.

  Attributes:
    others: Cache of programs that are not of a single unit.
    residuals: Where residuals of redundant passes wait, see `plan.residuals`.
  """

  def __init__(
      self,
      make_kind: Callable[
          [spec_lib.StageSpec], programs_lib.KindPrograms
      ] = programs_lib.KindPrograms,
  ) -> None:
    self._make_kind = make_kind
    self._kinds: dict[Hashable, programs_lib.KindPrograms] = {}
    # By kind of unit and device.
    self._adds: dict[Hashable, jax.stages.Compiled] = {}
    self.others: recent.Recent[Any] = recent.Recent(_MAX_OTHERS)
    self.residuals = "host"
    self._lock = threading.Lock()

  def clear(self) -> None:
    """Drops all programs."""
    self._kinds.clear()
    self._adds.clear()
    self.others.clear()

  def get(self, spec: spec_lib.StageSpec, device: places.Place) -> programs_lib.StagePrograms:
    """Returns the programs of a stage; compiles nothing yet."""
    return programs_lib.StagePrograms(spec, self._kinds_of(spec), device, residuals=self.residuals)

  def trace(self, spec: spec_lib.StageSpec) -> None:
    """Traces the programs of all kinds of units."""
    for programs in dict.fromkeys(self._kinds_of(spec)):
      programs.trace()

  def _kinds_of(self, spec: spec_lib.StageSpec) -> list[programs_lib.KindPrograms]:
    with self._lock:
      for unit in spec.units:
        if unit.kind not in self._kinds:
          self._kinds[unit.kind] = self._make_kind(unit)
      return [self._kinds[unit.kind] for unit in spec.units]

  def get_add(
      self, unit: spec_lib.StageSpec, device: jax.Device
  ) -> Callable[..., spec_lib.Accumulator]:
    """Returns the compiled sum of two accumulators of a unit on a device."""
    key = (unit.kind, device)
    if key not in self._adds:  # If two threads compile it, one of them loads.
      place = jax.sharding.SingleDeviceSharding(device)
      like = jax.tree.map(
          lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place),
          spec_lib.to_unit(unit.accumulator, unit),
      )
      self._adds[key] = _add.lower(like, like).compile()
    return self._adds[key]


@jax.jit
def _add(a: spec_lib.Accumulator, b: spec_lib.Accumulator) -> spec_lib.Accumulator:
  return jax.tree.map(operator.add, a, b)
