"""Holds the folder of a run for one process that trains alone.

It takes the same fence as the members of a cluster, and shows as they do that
it lives: agents that find it refuse the folder, and it ends before it writes
once another run has taken the folder over. A process that was killed shows
nothing more, so the next one waits for `fence.BEAT_SECS` at most.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import os
import threading
import uuid

from absl import logging

from bamboo_jax.cluster.store import fence as fence_lib

_STAMP = "bamboo-train"  # How those of processes that train alone begin.


def is_alone(claim: fence_lib.Claim) -> bool:
  """Whether the process of a claim has no agents and no store."""
  return claim.stamp.startswith(_STAMP)


@contextlib.contextmanager
def hold(
    folder: str | os.PathLike[str],
    found: fence_lib.Found,
    since_secs: float,
) -> Iterator[Callable[[], None]]:
  """Claims a folder, of which the caller holds the lock, until the block ends.

  Gives the function that raises `base.FencedError` once others have taken it.

  Args:
    found: Result of `Fence.read` at `since_secs` of `time.monotonic`.

  Raises:
    ValueError: Members of a run live there, or another process trains there.
    OSError: The folder cannot be read or written.
  """
  fence = fence_lib.Fence(folder)
  fence.clear(found, since_secs)
  claim = fence_lib.Claim(f"{_STAMP}-{uuid.uuid4().hex}")
  if not fence.create(claim.stamp):
    raise ValueError(
        f"Another process has just begun to work in {folder}; end it, or name "
        "another --workdir."
    )
  over = threading.Event()
  beating = threading.Thread(
      target=_beat, args=(fence, claim, over), name="fence", daemon=True
  )
  beating.start()
  try:
    yield functools.partial(fence_lib.check, fence, claim)
  finally:
    over.set()
    beating.join(fence_lib.BEAT_SECS)  # Unless the folder hangs.
    try:
      if fence.read()[0] == claim:
        fence.remove()
    except OSError as error:  # The next one waits until it is seen to be over.
      logging.warning("Cannot give %s back: %s", folder, error)


def _beat(
    fence: fence_lib.Fence, claim: fence_lib.Claim, over: threading.Event
) -> None:
  """Shows that this process lives, as long as the folder is its own."""
  while not over.wait(fence_lib.BEAT_SECS / 4):
    try:
      if fence.read()[0] != claim:
        return
      fence.beat()
    except OSError as error:
      logging.warning("Cannot show that this process lives: %s", error)
