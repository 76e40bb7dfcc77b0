"""Compiled programs, kept while nodes and plans change around them.

They depend only on kinds of units and on devices, so a new engine, or another
partition, finds them again.
"""

from collections.abc import Callable, Hashable, Sequence
import threading
from typing import Any
import weakref

import jax

from bamboo_jax.runtime import places
from bamboo_jax.runtime import recent
from bamboo_jax.runtime.stage import programs as programs_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import share_sum

# 13 nodes with 12 shares need 600 sums, those after the next death included.
_MAX_SUMS = 800  # With 45 mappings of memory each.
_MAX_OTHERS = 64  # With 250.


class ProgramCache:
  """The programs of one model; thread-safe.

  `make_kind` makes the programs of a kind of units.

  Attributes:
    others: Programs of many units.
    residuals: Where redundant passes keep theirs, see `plan.residuals`.
  """

  def __init__(
      self,
      make_kind: Callable[
          [spec_lib.StageSpec], programs_lib.KindPrograms
      ] = programs_lib.KindPrograms,
  ) -> None:
    self._make_kind = make_kind
    self._kinds: dict[Hashable, programs_lib.KindPrograms] = {}
    # By kind of unit and devices.
    self._sums: recent.Recent[share_sum.ShareSum] = recent.Recent(_MAX_SUMS)
    self._sum_programs: dict[Hashable, share_sum.Programs] = {}
    self.others: recent.Recent[Any] = recent.Recent(_MAX_OTHERS)
    self.residuals = "host"
    self._lock = threading.Lock()

  def clear(self) -> None:
    """Drops all programs."""
    self._kinds.clear()
    self._sums.clear()
    self._sum_programs.clear()
    self.others.clear()

  def get(
      self, spec: spec_lib.StageSpec, device: places.Place
  ) -> programs_lib.StagePrograms:
    """Returns the programs of a stage; compiles nothing yet."""
    return programs_lib.StagePrograms(
        spec, self._kinds_of(spec), device, residuals=self.residuals
    )

  def trace(self, spec: spec_lib.StageSpec) -> None:
    """Traces the programs of all kinds of units."""
    for programs in dict.fromkeys(self._kinds_of(spec)):
      programs.trace()

  def _kinds_of(
      self, spec: spec_lib.StageSpec
  ) -> list[programs_lib.KindPrograms]:
    with self._lock:
      for unit in spec.units:
        if unit.kind not in self._kinds:
          self._kinds[unit.kind] = self._make_kind(unit)
      return [self._kinds[unit.kind] for unit in spec.units]

  def get_sum(
      self,
      unit: spec_lib.StageSpec,
      holders: Sequence[jax.Device],
      receivers: Sequence[jax.Device] = (),
  ) -> share_sum.ShareSum:
    """Returns the sum of a unit, compiled; `holders` has one entry a share."""
    make = lambda: share_sum.ShareSum(
        holders,
        receivers=receivers,
        like=spec_lib.to_unit(unit.accumulator, unit),
        programs=self._sum_programs.setdefault(
            unit.kind, weakref.WeakValueDictionary()
        ),
    )
    key = (unit.kind, tuple(holders), tuple(receivers))
    return self._sums.get(key, make)
