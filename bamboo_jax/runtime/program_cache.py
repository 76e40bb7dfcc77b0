"""Compiled programs, kept while nodes and plans change around them.

They depend on layers and devices only, so a new engine finds them again.
"""

from collections.abc import Sequence
import threading
from typing import Any

import jax

from bamboo_jax.runtime.stage import functions as functions_lib
from bamboo_jax.runtime.stage import programs as stage_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import share_sum


class ProgramCache:
  """The programs of one model; may be used by any thread."""

  def __init__(self) -> None:
    self._functions: list[functions_lib.StageFunctions] = []
    # By functions and devices.
    self._programs: dict[tuple[Any, ...], stage_lib.StagePrograms] = {}
    self._sums: dict[tuple[Any, ...], share_sum.ShareSum] = {}
    self._lock = threading.Lock()

  def clear(self) -> None:
    """Drops all programs."""
    self._programs.clear()
    self._sums.clear()

  def get(
      self, spec: spec_lib.StageSpec, device: jax.Device
  ) -> stage_lib.StagePrograms:
    """Returns the programs of a stage; compiles nothing yet."""
    with self._lock:
      functions = self._functions_of(spec)
      key = (functions, device)
      if key not in self._programs:
        self._programs[key] = stage_lib.StagePrograms(functions, device)
      return self._programs[key]

  def get_sum(
      self, spec: spec_lib.StageSpec, holders: Sequence[jax.Device]
  ) -> share_sum.ShareSum:
    """Returns the sum of a stage, compiled; `holders` has one entry a share."""
    with self._lock:
      functions = self._functions_of(spec)
    key = (functions, *holders)
    if key not in self._sums:  # If two threads compile it, one of them loads.
      like = functions.spec.accumulator
      self._sums[key] = share_sum.ShareSum(holders, like=like)
    return self._sums[key]

  def _functions_of(
      self, spec: spec_lib.StageSpec
  ) -> functions_lib.StageFunctions:
    for functions in self._functions:
      if functions.spec == spec:
        return functions
    self._functions.append(functions_lib.StageFunctions(spec))
    return self._functions[-1]
