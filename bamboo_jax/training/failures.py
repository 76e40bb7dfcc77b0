"""Errors of the user's code and data, which end the run and not a node.

If the node that meets such an error died of it, its successor would meet the
same, and so on. So a member keeps the error and goes on: with ones instead of
the samples that cannot be read, until the vote, which tells the others. (Before
it uses them, it makes sure that all would repeat the whole step, should it be
killed before the vote.) The step is then not committed, and all members decide
together:

  an error in data   is the node's if another member can read the microbatch,
                     such as from its own disk; else every node would meet it
  any other error    is the node's if an `OSError` caused it, such as a full
                     disk; else every node would meet it, in the same code

A node with an error of its own dies, and others take over. An error that every
node would meet ends the run: all save the last step and end with one line. An
`OSError` in data may be the first sign of a machine that is shut down. So the
first node that meets one dies at once, and only the next one asks the others.
"""

from collections.abc import Collection, Mapping
import dataclasses
from typing import NamedTuple, NoReturn

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.cluster import children
from bamboo_jax.data import batches as batches_lib
from bamboo_jax.training import cohort as cohort_lib
from bamboo_jax.training.setup import build


class ReadPlace(NamedTuple):
  """A microbatch of a step, or of an evaluation."""

  is_heldout: bool
  step: int
  microbatch: int


@dataclasses.dataclass(frozen=True)
class Failure:
  """What a member says of its first error; `text` is "" without any.

  Attributes:
    place: The microbatch that it cannot read; None if the error is not in data.
    is_local: Whether an `OSError` caused it.
  """

  text: str = ""
  place: ReadPlace | None = None
  is_local: bool = False


class Failures:
  """The first error of the user's code that this member has met.

  Attributes:
    error: The exception; None without any.
  """

  def __init__(self) -> None:
    self.first = Failure()
    self.error: Exception | None = None

  def add(self, error: Exception, text: str, *, place: ReadPlace | None = None) -> None:
    """Keeps an error, unless there is one."""
    if self.error is None:
      self.error = error
      self.first = Failure(text, place, is_local=is_local(error))


class SafeData:
  """The data of a member; an error is kept in `failures`, not raised."""

  def __init__(self, task: build.Task, cohort: cohort_lib.Cohort, failures: Failures) -> None:
    self._batches, self.cohort = task.batches, cohort
    self._like = task.whole.batch
    self.failures = failures
    self.source: batches_lib.Batches | batches_lib.Prefetcher = task.batches

  def microbatch(
      self,
      step: int,
      microbatch: int,
      keys: Collection[str] | None = None,
      *,
      is_heldout: bool = False,
  ) -> dict[str, np.ndarray]:
    """Returns `Batches.microbatch`, or `eval_microbatch`; or ones after an error."""
    read = self._batches.eval_microbatch if is_heldout else self.source.microbatch
    try:
      arrays = read(step, microbatch, keys)
      self._check(arrays)
      return arrays
    except Exception as error:  # The user's code may raise anything.
      place = ReadPlace(is_heldout, step, microbatch)
      text = f"Cannot read {self._name_sample(place, keys)}: {base.describe_error(error)}"
      self.failures.add(error, text, place=place)
      # Others can go on, and no node has just died like that.
      view, hosted = self.cohort.view, self.cohort.hosted
      may_die = not view.numbers <= hosted and children.LOCAL_EXIT not in view.reason
      if is_local(error) and may_die:
        raise base.NodeFailedError(text) from error
      if not is_heldout:  # If this member dies before its vote.
        self.cohort.retract()
      kept = self._like if keys is None else keys
      return {key: np.ones(self._like[key].shape, self._like[key].dtype) for key in kept}

  def is_foreign(self, failure: Failure) -> bool:
    """Returns whether the failure of another member would not happen here."""
    if (place := failure.place) is None:
      return failure.is_local
    batches = self._batches
    read = batches.eval_microbatch if place.is_heldout else batches.microbatch
    try:
      self._check(read(place.step, place.microbatch))
    except Exception:  # As of the member that asks.
      return False
    return True

  def _check(self, arrays: Mapping[str, np.ndarray]) -> None:
    for name in arrays.keys() & self._like.keys():
      array, like = arrays[name], self._like[name]
      kinds = map(jax.dtypes.canonicalize_dtype, (array.dtype, like.dtype))
      if array.shape != like.shape or len({*kinds}) > 1:
        raise base.DataError(
            f"array {name!r} must be {like.dtype}{[*like.shape]} for {like.shape[0]} samples, as "
            f"in the first step, got {array.dtype}{[*array.shape]}."
        )

  def _name_sample(self, place: ReadPlace, keys: Collection[str] | None) -> str:
    """Returns the number of the first sample that cannot be read on its own."""
    batches, kind = self._batches, "held-out " * place.is_heldout
    find = batches.find_heldout if place.is_heldout else batches.find_samples
    samples = find(place.step, place.microbatch)
    for sample in samples:
      try:
        if place.is_heldout:
          arrays = batches.source.heldout_batch([sample])
        else:
          arrays = batches.source.batch([sample], seed=batches.seed)
        batches_lib.select_arrays(arrays, keys)
      except Exception:  # `_take` has the error.
        return f"{kind}sample {sample}"
    return f"{kind}samples {samples[0]} to {samples[-1]}"


def decide(failed: Collection[Failure], data: SafeData, *, steps: base.StepId) -> Failure:
  """Returns the failure that ends the run, on all members; blocks.

  If only the members that have failed must end, raises `base.NodeFailedError`
  there, and `base.ViewChangedError` on the others.
  """
  own = data.failures.first
  goes_on = not own.text and all(map(data.is_foreign, failed))
  said = data.cohort.gather(f"goes on after {steps}", goes_on)
  if any(said.values()):
    if own.text:
      raise base.NodeFailedError(own.text)
    raise base.ViewChangedError("a node will end, as it cannot go on")
  return min(failed, key=lambda one: (one.place or (), one.text))


def end_run(cohort: cohort_lib.Cohort, why: str, error: Exception | None) -> NoReturn:
  """Ends the run on all nodes, and raises `base.RunFailedError`."""
  cohort.say(failed=why)
  raise base.RunFailedError(why) from error


def is_users(error: BaseException) -> bool:
  """Returns whether the user's code raised an error that others would meet."""
  of_members = (base.ViewChangedError, base.AttemptOverError)
  is_known = isinstance(error, of_members) or is_local(error)
  return not is_known and bool(base.find_own_line(error))


def is_local(error: BaseException | None) -> bool:
  """Returns whether an `OSError` is, or has caused, an error."""
  while error is not None and not isinstance(error, OSError):
    error = error.__cause__
  return error is not None
