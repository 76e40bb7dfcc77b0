"""Preemptions that were announced, of this node and of others.

Who hears that its node will be preempted tells all other agents. The next view
names it as leaving, the workers hand over what its worker does, and it ends.
"""

from collections.abc import Callable

from bamboo_jax.cluster import notices
from bamboo_jax.cluster import peers as peers_lib
from bamboo_jax.cluster.agent import roster as roster_lib


class Announcements:
  """Tells others of a notice, and hears of theirs.

  Args:
    roster: Who there is.
    peers: The other agents.
    decide: Called when a view may have to be made.
  """

  def __init__(
      self,
      roster: roster_lib.Roster,
      peers: peers_lib.Peers,
      *,
      decide: Callable[[], None],
  ) -> None:
    self._roster = roster
    self._peers = peers
    self._decide = decide

  def give(self, reason: str) -> bool:
    """Announces that this node will be preempted.

    Args:
      reason: How that is known.

    Returns:
      Whether that is news, and there is something that others can take over.
    """
    me = self._roster.me
    if me is None or not self._roster.is_member:
      return False
    if me.incarnation in self._roster.noticed:
      return False
    self._roster.noticed[me.incarnation] = reason
    self._peers.send_all({"kind": "notice", "reason": reason})
    self._decide()
    return True

  def hear(self, incarnation: str, reason: str) -> None:
    """Notes what another agent announces."""
    self._roster.noticed[incarnation] = reason
    self._decide()

  def greet(self, incarnation: str) -> None:
    """Tells an agent that has just come."""
    reason = self._roster.noticed.get(self._roster.me.incarnation)
    if reason is not None:
      self._peers.send(incarnation, {"kind": "notice", "reason": reason})

  async def wait(self, poller: notices.Poller | None) -> str:
    """Waits for a notice of the cloud, and announces it.

    Args:
      poller: Asks the cloud; None if there is none to ask.

    Returns:
      Why this node should end at once; "" if it should not.
    """
    if poller is None:
      return ""
    reason = await notices.wait_notice(poller)
    if self.give(reason) or self._roster.is_member:
      return ""
    return f"it will be preempted ({reason}), and has not joined yet"
