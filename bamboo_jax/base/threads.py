"""Calls in daemon threads."""

from collections.abc import Callable
from concurrent import futures
import threading
from typing import Any, TypeVar

T = TypeVar("T")


def call_beside(call: Callable[..., T], *arguments: Any, name: str) -> futures.Future[T]:
  """Starts `call(*arguments)` in a daemon thread; returns its future at once.

  The thread does not keep the process alive. The future cannot be cancelled.
  """
  answer: futures.Future[T] = futures.Future()
  answer.set_running_or_notify_cancel()  # So `cancel` returns False.

  def run() -> None:
    try:
      answer.set_result(call(*arguments))
    except BaseException as error:
      answer.set_exception(error)

  threading.Thread(target=run, name=name, daemon=True).start()
  return answer
