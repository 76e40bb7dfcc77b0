"""Calls that may never return, in threads that nobody waits for."""

from collections.abc import Callable
from concurrent import futures
import threading
from typing import Any, TypeVar

T = TypeVar("T")


def call_beside(
    call: Callable[..., T], *arguments: Any, name: str
) -> futures.Future[T]:
  """Calls in a daemon thread, which does not keep the process from ending."""
  answer: futures.Future[T] = futures.Future()
  answer.set_running_or_notify_cancel()  # Who no longer waits cannot stop it.

  def run() -> None:
    try:
      answer.set_result(call(*arguments))
    except BaseException as error:
      answer.set_exception(error)

  threading.Thread(target=run, name=name, daemon=True).start()
  return answer
