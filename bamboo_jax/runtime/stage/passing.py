"""Avoids copies of values that a unit only passes on.

Layers pass values on to later stages, such as the context in GNMT. XLA would
copy each into a new buffer, once for every unit; here the result is the input
array itself, and so is its gradient on the way back.
"""

from collections.abc import Callable
import dataclasses

import jax

from bamboo_jax import base
from bamboo_jax.runtime import places


class Passing:
  """A function whose program does not return results that are inputs.

  Attributes:
    out_info: Shapes of all results; set by `trace`.
  """

  def __init__(self, function: Callable[..., base.PyTree], argument: int | None) -> None:
    """Wraps `function`.

    Args:
      argument: Position of the argument whose leaves may be passed on; None for
        none.
    """
    self.out_info: base.PyTree = None
    self._function = function
    self._argument = argument
    # Per result: the index of the input leaf that it is; None if computed.
    self._sources: tuple[int | None, ...] = ()

  def trace(self, *args: base.PyTree) -> base.PyTree:
    """Returns the results, or if some are inputs, a list of the others."""
    out = self._function(*args)
    given = [] if self._argument is None else args[self._argument]
    # Tracers: a value that is passed on is the same object.
    places = {id(leaf): i for i, leaf in enumerate(jax.tree.leaves(given))}
    leaves = jax.tree.leaves(out)
    self._sources = tuple(places.get(id(leaf)) for leaf in leaves)
    self.out_info = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), out)
    return self.pick(out)

  def pick(self, results: base.PyTree) -> base.PyTree:
    """Returns the leaves of `results` that are computed, not passed on."""
    if all(source is None for source in self._sources):
      return results
    pairs = zip(jax.tree.leaves(results), self._sources, strict=True)
    return [leaf for leaf, source in pairs if source is None]

  def join(self, compiled: jax.stages.Compiled) -> Callable[..., base.PyTree]:
    """Returns a program that returns all results."""
    if all(source is None for source in self._sources):
      return compiled
    assert self._argument is not None
    structure = jax.tree.structure(self.out_info)
    return _Joined(compiled, structure, self._sources, self._argument)


@dataclasses.dataclass(frozen=True)
class _Joined:
  """A compiled program that fills in the results that are inputs."""

  compiled: jax.stages.Compiled
  structure: jax.tree_util.PyTreeDef
  sources: tuple[int | None, ...]
  argument: int

  def __call__(self, *args: base.PyTree) -> base.PyTree:
    given = jax.tree.leaves(args[self.argument])
    made = iter(self.compiled(*args))
    return self.structure.unflatten(
        next(made) if source is None else given[source] for source in self.sources
    )

  def memory_analysis(self) -> object:
    """Returns the memory analysis of the compiled program."""
    return self.compiled.memory_analysis()


def keep_on_host(forward: Callable[..., base.PyTree]) -> Callable[..., base.PyTree]:
  """Returns the pass `forward`, with copies of its results in host memory."""

  def run(*args: base.PyTree) -> tuple[base.PyTree, ...]:
    done, outputs, saved = forward(*args)
    return (done, outputs, *places.move((outputs, saved), "pinned_host"))

  return run
