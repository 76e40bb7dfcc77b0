"""Holds the folder of a run for one process that trains alone.

It claims the same fence as the members of a cluster, and updates it as they do.
Agents that find it refuse the folder; once another run has taken the folder
over, it ends before it writes. After a kill the next process waits for at most
`fence.BEAT_SECS`.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import os
import pathlib
import threading
import uuid

from absl import logging

from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import fence as fence_lib

_STAMP = "bamboo-train"  # Prefix of the stamps of processes that train alone.


def is_alone(claim: fence_lib.Claim) -> bool:
  """Whether the process of a claim has no agents and no store."""
  return claim.stamp.startswith(_STAMP)


@contextlib.contextmanager
def hold(
    folder: str | os.PathLike[str], found: fence_lib.Found, since_secs: float
) -> Iterator[Callable[[int], None]]:
  """Claims a folder, whose lock the caller holds, in a `with` block.

  Yields a function of 0, the epoch of a run without members, that raises
  `base.FencedError` once others have taken the folder.

  Args:
    found: Result of `Fence.read` at `since_secs` of `time.monotonic`.

  Raises:
    ValueError: Members of a run are alive there, or a process trains there.
    OSError: The folder cannot be read or written.
  """
  fence = fence_lib.Fence(folder)
  fence.clear(found, since_secs)
  claim = fence_lib.Claim(f"{_STAMP}-{uuid.uuid4().hex}")
  if not fence.create(claim.stamp):
    raise ValueError(
        f"Another process has just started in {folder}; end it, or name " "another --workdir."
    )
  over = threading.Event()
  beating = threading.Thread(
      target=_beat, args=(fence, claim, over, pathlib.Path(folder)), name="fence", daemon=True
  )
  beating.start()
  try:
    yield functools.partial(fence_lib.check, fence, claim.stamp)
  finally:
    over.set()
    beating.join(fence_lib.BEAT_SECS)  # Unless the folder hangs.
    try:
      if fence.read().claim == claim:
        fence.remove()
    except OSError as error:  # The next process waits for `BEAT_SECS`.
      logging.warning("Cannot release %s: %s", folder, error)


def _beat(
    fence: fence_lib.Fence, claim: fence_lib.Claim, over: threading.Event, folder: pathlib.Path
) -> None:
  """Shows that this process is alive, until another one takes the folder."""
  inode = folder.stat().st_ino
  while not over.wait(fence_lib.BEAT_SECS / 4):
    try:
      found = fence.read().claim
      if found is None and folder.stat().st_ino == inode:
        fence.create(claim.stamp)  # It was removed, and no mount is away.
      elif found not in (None, claim):
        return
      asked = fence.views_after(claim.stamp)
      if asked and asked[-1].is_ask:
        fence.claim_view(claim.stamp, views.answer(asked[-1], "bamboo train"))
      fence.beat(claim.stamp)
    except OSError as error:
      logging.warning("Cannot show that this process is alive: %s", error)
