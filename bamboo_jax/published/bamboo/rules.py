"""Bamboo, as the simulators of two published artifacts have it.

A lost node is replaced by the node of the stage before, its shadow: the step in
flight gets longer by half of what is left of it, and later ones take one and a
half times as long. A node that covers two stages cannot be lost, nor stand in
for another: then all gather anew.
"""

from collections.abc import Callable, Sequence

from bamboo_jax.published.bamboo import loop as artifact_loop

GLOBAL_MS = 30_000
# A loss of this share of the nodes that train would be fatal: gather before.
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
    """Sets who trains: every node covers its own stage only."""
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
    """Ends the step, unless a loss makes it longer; gathers if it should."""
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
    """Returns whether nobody can stand in for a node; else its shadow does."""
    if self._holders.count(node) > 1:
      self._num_doubled -= 1
      return True
    place = self._holders.index(node)
    first = place - place % self.num_stages
    shadow = self._holders[first + (place - first - 1) % self.num_stages]
    if not shadow.is_live:
      return False  # So the artifacts have it: nobody covers the stage.
    if self._holders.count(shadow) > 1:
      return True
    self._holders[place] = shadow
    self._num_doubled += 1
    return False

  def _should_gather(self, loop: artifact_loop.Loop) -> bool:
    """Returns whether nodes wait that can be used, or a loss is too likely."""
    doubled, waiting = self._num_doubled, loop.num_waiting
    training = loop.num_pipelines * self.num_stages - doubled
    if doubled and (
        waiting >= doubled or 2 * doubled > _MAX_EXPOSED * training
    ):
      return True
    return (training + waiting) // self.num_stages > loop.num_pipelines
