"""Members, views of them, and one who answers."""

import contextlib
import threading

from bamboo_jax.cluster import judge, views


def member(number, zone="a", host="h"):
  return views.Member(number, f"n{number}", zone, f"life {number}", host, 1)


def view(number, *numbers, reason="test", **changes):
  return views.View(number, tuple(map(member, numbers)), reason, **changes)


@contextlib.contextmanager
def answering(records, name):
  """Lets a member answer in the log, meanwhile, that it is alive."""
  over = threading.Event()

  def answer():
    while not over.wait(0.01):
      asked = judge.newest_view(records)
      if asked.is_ask:
        judge.make_view(records, asked, views.answer(asked, name))

  thread = threading.Thread(target=answer)
  thread.start()
  try:
    yield
  finally:
    over.set()
    thread.join()
