"""The part of a cohort's member in collectives over several processes."""

from collections.abc import Callable, Collection, Mapping, Sequence

import jax

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.spmd.processes import preconnect as preconnect_lib
from bamboo_jax.runtime.spmd.processes import settle as settle_lib
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.schedule import channel as channel_lib

_MOST_SOCKETS = 512  # Other nodes that one node may connect to.


class Collectives:
  """Collective transfers with other processes.

  Attributes:
    log: Records all of them.
    devices: The devices of all nodes that may ever exist, by number.
  """

  def __init__(
      self,
      log: transfer_log.TransferLog,
      devices: Mapping[int, jax.Device],
  ) -> None:
    self.log, self.devices = log, devices
    self._preconnections = preconnect_lib.Preconnections(devices, log)

  def attach(
      self,
      rows: engine_lib.Engine,
      answer: Callable[[channel_lib.Channel], None],
  ) -> None:
    """Sets the engine; called once, before anything else.

    Args:
      rows: Has the owners and shadows of each stage.
      answer: Ends a segment that other processes have begun; blocks.
    """
    self._rows, self._answer = rows, answer

  def settle(
      self, begun: Mapping[int, channel_lib.Begun], *, view: int, me: int
  ) -> None:
    """Ends all transfers that live nodes have begun; blocks.

    `begun` is by node of the view.
    """
    self.log.answer_for(view)
    for channel in settle_lib.find_unanswered(begun)[me]:
      if channel.kind == "meet":
        self._preconnections.answer(channel)
      else:
        self._answer(channel)

  def connect(self, *, ahead: bool) -> int:
    """Connects the nodes of each ring; returns the number of local groups.

    With `ahead` also those of the rings after one death. All members must call
    it at once. Raises as a transfer does if a node has died.
    """
    groups = self._find_groups(ahead=ahead)
    for group in groups:
      self._preconnections.connect(group)
    return len(groups)

  def jobs(self) -> list[Callable[[], object]]:
    """Returns the jobs that compile what `connect` needs."""
    compile_group = self._preconnections.compile
    return [
        lambda g=group: compile_group(g)
        for group in self._find_groups(ahead=True)
    ]

  def keep(self, alive: Collection[int]) -> None:
    """Drops connections and programs that involve dead nodes."""
    self._preconnections.keep(alive)

  def _find_groups(self, *, ahead: bool) -> list[tuple[int, ...]]:
    rows = self._rows
    deaths = compile_ahead.survivable_deaths(rows.owners, rows.shadows)
    now = self._find_rings(rows.owners)
    later = {g for owners in deaths for g in self._find_rings(owners)}
    later = later if ahead else ()
    groups = now | preconnect_lib.choose_groups(now, later, most=_MOST_SOCKETS)
    return sorted(g for g in groups if self._preconnections.is_needed(g))

  def _find_rings(
      self, owners: Sequence[Sequence[int]]
  ) -> set[tuple[int, ...]]:
    """Returns the nodes of each pipeline whose nodes all have devices."""
    rings = {tuple(dict.fromkeys(row)) for row in owners}
    return {ring for ring in rings if self.devices.keys() >= {*ring}}
