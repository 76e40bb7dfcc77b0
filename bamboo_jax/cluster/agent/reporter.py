"""Tells the store how training goes, for whoever asks; see `launch.status`.

The worker that writes the log reports to its agent, which puts it into the key
`status` of the run: JSON with

  at_secs     when that was, in seconds since 1970
  steps       number of steps done
  layout      who trains what, see `recovery.assignment`
  recoveries  the last ones, as the log has them

Nothing here is read to decide anything.
"""

import asyncio
from collections.abc import Mapping
import time
from typing import Any

from absl import logging

from bamboo_jax.cluster.store import registry as registry_lib

_EVERY_SECS = 1.0


class Reporter:
  """Writes what has changed, at most once a second; waits for nobody.

  Args:
    registry: The keys of the run.
  """

  def __init__(self, registry: registry_lib.Registry) -> None:
    self._registry = registry
    self._facts: dict[str, Any] = {}
    self._changed = asyncio.Event()

  def note(self, facts: Mapping[str, Any]) -> None:
    """Notes facts; those with other names stay as they are."""
    self._facts |= facts
    self._changed.set()

  async def run(self) -> None:
    """Writes until it is cancelled."""
    while True:
      await self._changed.wait()
      await self.write()
      await asyncio.sleep(_EVERY_SECS)

  async def write(self) -> None:
    """Writes what has not been written yet."""
    if not self._changed.is_set():
      return
    self._changed.clear()
    status = {"at_secs": time.time(), **self._facts}
    try:
      await asyncio.to_thread(self._registry.write_status, status)
    except OSError as error:
      logging.warning("%s", error)
