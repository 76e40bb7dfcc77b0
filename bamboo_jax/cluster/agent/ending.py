"""How the life of an agent ends, and what comes after it."""

import asyncio
import dataclasses

from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import options as agent_options


class Ending:
  """The end of one agent; the first reason counts.

  Attributes:
    fault: Why the agent has killed its worker, "" if it has not.
    cause: Why its worker has ended, if others may go on without it.
  """

  def __init__(self) -> None:
    self.fault = self.cause = ""
    self._reason = ""
    self._error: BaseException | None = None
    self._event = asyncio.Event()
    self._bereft: set[str] = set()
    self._is_over = False

  @property
  def is_near(self) -> bool:
    """Whether the agent ends now; what it hears says nothing about others."""
    return self._event.is_set()

  def finish(self, reason: str) -> None:
    """Ends it for a reason; "" if all is done."""
    if not self._event.is_set():
      self._reason = reason
      self._event.set()

  def fail(self, error: BaseException) -> None:
    """Ends it with an exception."""
    if not self._event.is_set():
      self._error = error
      self._event.set()

  async def wait(self) -> str:
    """Waits for it; returns the reason, or raises the exception."""
    await self._event.wait()
    if self._error is not None:
      raise self._error
    return self._reason

  def note_bereft(self, incarnation: str) -> None:
    """Notes an agent that lives, and whose worker was killed."""
    self._bereft.add(incarnation)

  def end_run(self, me: str, reason: str) -> None:
    """Ends it as nobody is left to go on."""
    if not self._event.is_set():
      self._is_over = True
      self.note_bereft(me)
      self.finish(reason)

  def successor(
      self, options: agent_options.Options, view: views.View
  ) -> agent_options.Options | None:
    """Returns what an agent is told that comes in place of this one.

    None unless nobody was left to go on: then all agents that live begin anew,
    from the last checkpoint.

    Args:
      options: What this one was told.
      view: The last that it knows.
    """
    if not self._is_over:
      return None
    return dataclasses.replace(
        options, num_nodes=len(self._bereft), after_view=view.number
    )
