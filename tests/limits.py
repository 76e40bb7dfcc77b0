"""Limits of the system, for a while."""

import contextlib
import resource


@contextlib.contextmanager
def file_size(num_bytes):
  """Lets writes of larger files fail, of root's too, as on a full disk."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
