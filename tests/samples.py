"""Sweeps in tests: a sample of the cases, or all with `launch/test --all`.

The seed is new in every run, and printed before the summary of pytest; with
`launch/test --sample=SEED` the same cases run again.
"""

from collections.abc import Iterable
import os
import random
from typing import TypeVar
import unittest

# Tests draw when they are imported, also in the workers of pytest-xdist.
_SEED = "BAMBOO_TESTS_SAMPLE"
_ALL = "all"
_T = TypeVar("_T")


def choose(seed: str | None, *, is_all: bool) -> None:
  """Sets the seed of all samples; without one, draws it.

  Raises `ValueError` if it is not a number.
  """
  given = _ALL if is_all else seed or os.environ.get(_SEED)
  if given and given != _ALL and not given.isdecimal():
    raise ValueError(f"--sample must be a number, such as 7, got {given!r}.")
  os.environ[_SEED] = given or str(random.randrange(1_000_000))


def is_all() -> bool:
  """Returns whether all cases run."""
  return os.environ.get(_SEED) == _ALL


def only_all(test: _T) -> _T:
  """Decorates tests and classes that other ones repeat at a lower level: they run with `--all`."""
  return unittest.skipUnless(is_all(), "only with --all")(test)


def describe() -> str:
  """Returns how to run the same cases again."""
  return "sweeps: --all" if is_all() else f"sweeps: --sample={os.environ[_SEED]}"


def draw(cases: Iterable[_T], count: int, *, topic: str = "") -> list[_T]:
  """Returns `count` of the cases, in their order; or all.

  Args:
    topic: Samples of the same seed with different topics are independent.
  """
  cases = [*cases]
  seed = os.environ.get(_SEED, "0")
  if is_all() or len(cases) <= count:
    return cases
  rng = random.Random(f"{seed} {topic}")
  chosen = rng.sample(range(len(cases)), count)
  return [cases[i] for i in sorted(chosen)]
