"""A node's arrays of the current step.

Without redundancy an array is dropped once the step cannot need it again. With
redundancy, sent activations and gradients and the results of redundant forward
passes are kept until the commit, for a failover. They lie in host memory and
return to the device only if used.
"""

from collections.abc import Sequence
from typing import Any

import jax

from bamboo_jax import base
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import holdings as holdings_lib

Key = holdings_lib.Item  # Stage and microbatch.
# What is kept of a forward pass through a unit: its input, None for the first of a stage,
# whose input is an activation; and what it saved, None if a redundant pass left it out.
Kept = tuple[base.PyTree, spec_lib.Saved | None]
Sum = tuple[int, base.ShareId]  # First layer of a unit, and share.


class StepArrays:
  """A node's arrays, by stage and microbatch.

  With `keep`, which each step sets, sent arrays stay until the commit; if links
  send from host memory (`sends_host`), the kept copy is the one sent.

  Attributes:
    activations: Outputs of stages.
    grads: Gradients with respect to these.
    saved: Values that the units of a stage keep of a forward pass; after a death
      those that nodes of a program have dumped, `spmd.passes.Kept` in NumPy.
    copies: Parameters as passes read them, by unit; present while rows run.
    accumulators: Sums over the microbatches of a share, by unit and share.
    accumulated: Backward passes that are in these sums.
    tied: Accumulators of which the gradients of tied parameters are the sums of all
      copies, by unit and share; other units have none.
    totals: Sums over all shares, by unit: of owners, of nodes that computed shares, and of
      shadows that received them. Nodes of one device share their arrays.
    proposed: States after the step, if computed before the commit, by unit.
  """

  def __init__(self, *, keep: bool = False, sends_host: bool = False) -> None:
    self.keep = keep
    self._sends_host = sends_host
    self.clear()

  def clear(self) -> None:
    self.activations: dict[Key, base.PyTree] = {}
    self.grads: dict[Key, base.PyTree] = {}
    self.saved: dict[Key, Any] = {}
    self.copies: dict[int, Sequence[base.PyTree]] = {}
    self.accumulators: dict[Sum, spec_lib.Accumulator] = {}
    self.accumulated: set[Key] = set()
    self.tied: dict[Sum, spec_lib.Accumulator] = {}
    self.totals: dict[int, spec_lib.Accumulator] = {}
    self.proposed: dict[int, spec_lib.LayerState] = {}

  def holdings(self) -> holdings_lib.Holdings:
    return holdings_lib.Holdings(
        activations={*self.activations},
        gradients={*self.grads},
        residuals={*self.saved},
        accumulated={*self.accumulated},
    )

  def arrays(self) -> list[jax.Array]:
    return [a for a in jax.tree.leaves([*vars(self).values()]) if isinstance(a, jax.Array)]

  def find_sum(self, unit: int, share: base.ShareId) -> spec_lib.Accumulator:
    """Returns the sum over the microbatches of a share, ties included."""
    return self.tied.get((unit, share)) or self.accumulators[unit, share]

  def send(self, kept: dict[Key, base.PyTree], key: Key) -> base.PyTree:
    """Returns an array of `kept` (`activations` or `grads`), ready to send."""
    value = kept.pop(key)
    if self.keep:
      kept[key] = places.move(value, "pinned_host")
      if self._sends_host:
        return kept[key]
    return places.move(value, "device")
