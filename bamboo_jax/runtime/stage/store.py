"""A node's arrays of the current step.

Without redundancy an array is dropped once the step cannot need it again. With
it, activations and gradients that were sent, and results of redundant forward
passes, are kept until the commit for a failover. They lie in host memory and
come back to the device only if used.
"""

from collections.abc import Iterator
import dataclasses

import jax

from bamboo_jax import base
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import holdings as holdings_lib

Key = tuple[int, int]  # Stage and microbatch.


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
  value: base.PyTree
  is_on_host: bool = False


class Store:
  """Arrays by stage and microbatch.

  With `keep`, what was sent stays until the step is committed; if a link sends
  from host memory (`sends_host`), the copy that stays is the one that is sent.

  Attributes:
    accumulators: Sums over the microbatches of a share, by stage and share.
  """

  def __init__(self, *, keep: bool, sends_host: bool = False) -> None:
    self._keep = keep
    self._sends_host = sends_host
    self.clear()

  def clear(self) -> None:
    """Forgets everything."""
    self.accumulators: dict[Key, spec_lib.Accumulator] = {}
    self._activations: dict[Key, _Held] = {}
    self._grads: dict[Key, _Held] = {}
    self._saved: dict[Key, _Held] = {}
    self._accumulated: set[Key] = set()

  def holdings(self) -> holdings_lib.Holdings:
    """Returns the holdings, for the scheduler."""
    return holdings_lib.Holdings(
        activations=frozenset(self._activations),
        gradients=frozenset(self._grads),
        residuals=frozenset(self._saved),
        accumulated=frozenset(self._accumulated),
    )

  def arrays(self) -> list[base.PyTree]:
    """Returns all arrays."""
    return [*(h.value for h in self._held()), *self.accumulators.values()]

  def host_bytes(self) -> int:
    """Returns the size of the arrays in host memory."""
    held = [h.value for h in self._held() if h.is_on_host]
    return sum(array.nbytes for array in jax.tree.leaves(held))

  def put_activation(self, key: Key, value: base.PyTree) -> None:
    """Holds the output of a stage."""
    self._activations[key] = _Held(value)

  def put_grad(self, key: Key, value: base.PyTree) -> None:
    """Holds the gradient with respect to the output of a stage."""
    self._grads[key] = _Held(value)

  def put_saved(self, key: Key, saved: list[spec_lib.Saved]) -> None:
    """Holds what the units of a stage keep of a forward pass."""
    self._saved[key] = _Held(saved)

  def put_redundant(
      self, key: Key, outputs: base.PyTree, saved: list[spec_lib.Saved]
  ) -> None:
    """Holds the results of a redundant forward pass, from host memory."""
    self._saved[key] = _Held(saved, is_on_host=True)
    if outputs is not None and key not in self._activations:
      self._activations[key] = _Held(outputs, is_on_host=True)

  def put_accumulator(
      self, key: Key, share: int, accumulator: spec_lib.Accumulator
  ) -> None:
    """Holds the sum that now has the backward pass `key` in it."""
    self.accumulators[key[0], share] = accumulator
    self._accumulated.add(key)

  def activation(self, key: Key) -> base.PyTree:
    """Returns the output of a stage on the device; None if it is not held."""
    return self._fetch(self._activations.get(key))

  def take_inputs(
      self, key: Key
  ) -> tuple[base.PyTree, list[spec_lib.Saved], base.PyTree]:
    """Returns and drops the inputs of a backward pass.

    They are the input of the stage, the residuals, and the gradient of the
    output; the first and last are None at the ends.
    """
    before = (key[0] - 1, key[1])
    saved = self._fetch(self._saved.pop(key))
    inputs = self._fetch(self._activations.pop(before, None))
    return inputs, saved, self._fetch(self._grads.pop(key, None))

  def send_activation(self, key: Key) -> base.PyTree:
    """Returns the output of a stage, to be sent."""
    return self._send(self._activations, key)

  def send_grad(self, key: Key) -> base.PyTree:
    """Returns the gradient with respect to the output of a stage."""
    return self._send(self._grads, key)

  def _held(self) -> Iterator[_Held]:
    for kept in (self._activations, self._grads, self._saved):
      yield from kept.values()

  def _send(self, kept: dict[Key, _Held], key: Key) -> base.PyTree:
    held = kept[key]
    if not self._keep:
      del kept[key]
    elif not held.is_on_host:
      moved = places.move(held.value, "pinned_host")
      kept[key] = _Held(moved, is_on_host=True)
    if self._keep and self._sends_host:
      return kept[key].value
    return self._fetch(held)

  def _fetch(self, held: _Held | None) -> base.PyTree:
    if held is None:
      return None
    if not held.is_on_host:
      return held.value
    return places.move(held.value, "device")


def delete_arrays(tree: base.PyTree) -> None:
  """Frees the arrays of a tree at once, so that nobody can read them."""
  for array in jax.tree.leaves(tree):
    if isinstance(array, jax.Array) and not array.is_deleted():
      array.delete()
