"""Fails a test that leaves a connection open.

Whoever collects it then does so on any thread, which an event loop refuses.
"""

import gc
import pathlib
import warnings

import pytest

_MARKS = (
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings(
        "error::pytest.PytestUnraisableExceptionWarning"
    ),
)


@pytest.fixture(autouse=True, scope="module")
def collect_garbage_of_others():
  """Lets go of what tests of other packages have left in this process."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)
    gc.collect()


def pytest_collection_modifyitems(items):
  here = pathlib.Path(__file__).parent
  for item in (i for i in items if i.path.is_relative_to(here)):
    for mark in _MARKS:
      item.add_marker(mark)
