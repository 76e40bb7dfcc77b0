"""Libraries that few tests need, and that take seconds to import.

Each worker of pytest collects all files, but runs few of them.
"""

import pytest


class Library:
  """A library that is imported when it is first used; without it the test is skipped."""

  def __init__(self, name):
    self._name = name

  def __getattr__(self, name):
    if name.startswith("_"):  # pytest looks for marks in all that a file has.
      raise AttributeError(name)
    return getattr(pytest.importorskip(self._name), name)
