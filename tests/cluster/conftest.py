"""Fails a test that leaves a connection open.

Whoever collects it then does so on any thread, which an event loop refuses.
"""

import gc
import pathlib

import pytest

_MARKS = (
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
)


@pytest.fixture(autouse=True, scope="module")
def keep_garbage_of_others():
  """Hides from collections what tests of other packages have left.

  To collect a process that has run tests for long takes a second.
  """
  gc.freeze()
  yield
  gc.unfreeze()


def pytest_collection_modifyitems(items):
  here = pathlib.Path(__file__).parent
  for item in (i for i in items if i.path.is_relative_to(here)):
    for mark in _MARKS:
      item.add_marker(mark)
