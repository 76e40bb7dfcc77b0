"""The rules of Bamboo in the simulators of two published artifacts.

A lost node is replaced by the node of the previous stage, its shadow: the rest
of the step in flight takes half as long again, and later steps take one and a
half times as long. A node that covers two stages cannot be lost, nor cover a
third one: then all nodes gather again.
"""

from collections.abc import Callable, Sequence

from bamboo_jax.reproductions.bamboo import loop as artifact_loop

GLOBAL_MS = 30_000
# If losing this share of the training nodes would be fatal, gather first.
_MAX_EXPOSED = 0.05


class BambooRules:
  """The rules of Bamboo; see `loop.Rules`.

  Nodes gather locally at the end of a step, globally at the start and after a
  fatal loss.

  Attributes:
    num_fatal: Losses after which all nodes had to gather.
    lost_ms: Sum over losses of the step time at the loss.
  """

  def __init__(
      self,
      *,
      num_stages: int,
      step_ms: Callable[[int, int], int],
      local_ms: int,
      global_ms: int = GLOBAL_MS,
  ) -> None:
    self.num_stages = num_stages
    self.num_fatal = 0
    self.lost_ms = 0
    self.step_ms = step_ms
    self.timers_ms = {True: global_ms, False: local_ms}
    self._holders: list[artifact_loop.Node] = []  # By place.
    self._num_doubled = 0  # Live nodes that cover two stages.
    self._is_slowed = False
    self._prolong_since_ms: int | None = None

  def assign(self, nodes: Sequence[artifact_loop.Node]) -> None:
    """Sets the training nodes: every node covers only its own stage."""
    self._holders = list(nodes)
    self._num_doubled = 0
    self._is_slowed = False
    self._prolong_since_ms = None

  def lose(self, loop: artifact_loop.Loop, node: artifact_loop.Node) -> None:
    """Lets the shadow take over, or all nodes gather."""
    self.lost_ms += loop.step_ms
    if node in self._holders and self._is_fatal(node):
      self.num_fatal += 1
      loop.gather(is_global=True)
    elif loop.state is artifact_loop.State.RUNNING and not self._is_slowed:
      self._is_slowed = True
      self._prolong_since_ms = loop.now_ms
      loop.step_ms = loop.step_ms * 3 // 2

  def end_step(self, loop: artifact_loop.Loop) -> bool:
    """Ends the step, unless a loss prolongs it; gathers if necessary."""
    if self._prolong_since_ms is not None:
      loop.step_end_ms += (loop.now_ms - self._prolong_since_ms) // 2
      self._prolong_since_ms = None
      return False
    loop.complete_step()
    if self._should_gather(loop):
      loop.gather(is_global=False)
      return False
    loop.start_step(loop.now_ms)
    return True

  def _is_fatal(self, node: artifact_loop.Node) -> bool:
    """Returns whether no node can cover for a node, as its shadow would."""
    if self._holders.count(node) > 1:
      self._num_doubled -= 1
      return True
    place = self._holders.index(node)
    first = place - place % self.num_stages
    shadow = self._holders[first + (place - first - 1) % self.num_stages]
    if not shadow.is_live:
      return False  # As in the artifacts, no node covers the stage.
    if self._holders.count(shadow) > 1:
      return True
    self._holders[place] = shadow
    self._num_doubled += 1
    return False

  def _should_gather(self, loop: artifact_loop.Loop) -> bool:
    """Returns whether usable nodes wait, or a fatal loss is too likely."""
    doubled, waiting = self._num_doubled, loop.num_waiting
    training = loop.num_pipelines * self.num_stages - doubled
    if doubled and (waiting >= doubled or 2 * doubled > _MAX_EXPOSED * training):
      return True
    return (training + waiting) // self.num_stages > loop.num_pipelines
