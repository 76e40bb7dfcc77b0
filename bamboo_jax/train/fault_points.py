"""Faults of a real cluster: a worker says where one is due, and is told on.

Whoever injects faults, the director, runs elsewhere and does the killing, so
that a death is a real one and its time is known to somebody who survives it.
"""

from collections.abc import Iterable, Sequence
import os
import socket
from typing import Any

from bamboo_jax.cluster import frames
from bamboo_jax.faults import cluster_file
from bamboo_jax.faults import fault_file
from bamboo_jax.train import failures


class Director:
  """The worker's connection to the one who injects faults.

  Args:
    port: Where the director listens on this machine.
    number: Number of the node.
    name: Name of the node.
  """

  def __init__(self, port: int, *, number: int, name: str) -> None:
    self._socket = socket.create_connection(("127.0.0.1", port))
    self._say({"number": number, "name": name, "pid": os.getpid()})

  def report(self, fault: cluster_file.ClusterFault, **facts: Any) -> bool:
    """Says that a fault is due; returns if and when this node may go on.

    Args:
      fault: The fault.
      **facts: What helps to find out whom it means.

    Returns:
      Whether it is a node that joins, and has come before: the step is done
      again.
    """
    self._say({"line": fault.line, **facts})
    data = self._socket.recv(1 << 16)
    if not data:
      raise ConnectionError("Nobody injects faults any more.")
    (answer,) = frames.Decoder().feed(data)
    return answer["has_come"]

  def _say(self, message: dict[str, Any]) -> None:
    self._socket.sendall(frames.encode(message))


class FaultPoints:
  """The faults of one step that one node has to report.

  Those with a point are reported there, by the owner of the place; all others
  as the step begins, by the first node.

  Args:
    faults: All faults.
    step: The step.
    owners: For each pipeline, the node of each stage as the step begins.
    node: The node.
    director: Is asked; None if there are no faults.
  """

  def __init__(
      self,
      faults: Iterable[cluster_file.ClusterFault],
      *,
      step: int,
      owners: Sequence[Sequence[int]],
      node: int,
      director: Director | None,
  ) -> None:
    due = [f for f in faults if f.step == step and f.kind != "join"]
    self._at = [f for f in due if f.at is not None]
    self._at = [f for f in self._at if _owner(f, owners) == node]
    is_first = node == min(n for row in owners for n in row)
    self._any_time = [f for f in due if f.at is None] if is_first else []
    self._owners = owners
    self._director = director
    points = [fault_file.Fault(step, *f.place, at=f.at) for f in self._at[:1]]
    self._injector = failures.Injector(points, owners=owners)
    self._node = node

  def reach(self, point: int | str) -> None:
    """Notes that an instruction, or a phase if `point` is a name, begins."""
    for fault in self._any_time:
      self._director.report(fault, owner=_owner(fault, self._owners))
    self._any_time = []
    try:
      if isinstance(point, str):
        self._injector.before_phase(point)
      else:
        self._injector.before_instruction(self._node)
    except failures.NodesLostError:
      self._director.report(self._at[0], owner=self._node)


def _owner(
    fault: cluster_file.ClusterFault, owners: Sequence[Sequence[int]]
) -> int | None:
  """Returns the node of the place of a fault, None if it has none."""
  if fault.place is None:
    return None
  pipeline, stage = fault.place
  return owners[pipeline][stage]
