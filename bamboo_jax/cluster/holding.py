"""Holds the folder of a run for one process that trains alone.

It is the only member of its view in the log, and answers who asks there, as
agents do. It ends before it writes, once others have taken the folder. While it
lives it accepts connections at the address of its member, so that another
process of this machine need not ask whether it does.
"""

from collections.abc import Iterator
import contextlib
import socket
import threading
import uuid

from absl import logging

from bamboo_jax import base
from bamboo_jax.cluster import judge, records as records_lib, views

_LOOK_SECS = 2.0
_HOST = "127.0.0.1"


@contextlib.contextmanager
def hold(records: records_lib.Records, *, patience_secs: float) -> Iterator["Holder"]:
  """Begins a run of this process, in a `with` block.

  Members of a former run have `patience_secs` to answer.

  Raises:
    ValueError: Members of a run are alive there, or a process trains there.
    OSError: The records cannot be read or written.
  """
  with socket.create_server((_HOST, 0)) as listener:
    me = views.Member(
        base.NodeId(0), judge.ALONE, "", uuid.uuid4().hex, _HOST, listener.getsockname()[1]
    )
    view = judge.begin_run(records, judge.ALONE, patience_secs, alone=(me,))
    run = judge.describe_run(me.incarnation, {"command": judge.ALONE})
    records.make(f"run/{view.run}", run)
    with contextlib.closing(Holder(records, view)) as holder:
      yield holder


class Holder:
  """Answers each question in the log, until another run begins there."""

  def __init__(self, records: records_lib.Records, view: views.View) -> None:
    self._records, self._view, self._newest = records, view, view
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._answer, name="judge", daemon=True)
    self._thread.start()

  @property
  def is_taken(self) -> bool:
    """Whether it was seen that others have taken the folder; reads nothing."""
    return self._newest.run != self._view.run

  def check(self) -> None:
    """Raises `base.FencedError` if others have taken the folder."""
    judge.check_now(self._records, self._view)

  def close(self) -> None:
    """Records that nobody is left of the run."""
    self._over.set()
    self._thread.join(_LOOK_SECS)  # Unless the folder hangs.
    try:
      newest = judge.newest_view(self._records)
      if newest.run == self._view.run:
        judge.make_view(self._records, newest, views.over(newest))
    except OSError as error:  # The next process asks.
      logging.warning("Cannot record that this process ends: %s", error)

  def _answer(self) -> None:
    while not self.is_taken and not self._over.wait(_LOOK_SECS):
      try:
        found = judge.views_after(self._records, self._newest.number)
        newest = [self._newest, *found][-1]
        if newest.is_ask:
          answer = views.answer(newest, judge.ALONE)
          newest = judge.make_view(self._records, newest, answer)
        self._newest = newest
      except OSError as error:
        logging.warning("Cannot show that this process is alive: %s", error)
