"""Shows how a run goes on the output of an agent, as `bamboo cluster` does.

Who has come and what changes is known to the agent; steps and deaths are in the
log of the run, in the workdir that all nodes share.
"""

import json
import pathlib
import threading

from absl import logging

from bamboo_jax import base
from bamboo_jax.cluster import mirror
from bamboo_jax.cluster.agent import agent as agent_lib
from bamboo_jax.metrics import jsonl, progress as progress_lib
from bamboo_jax.recovery import durations
from bamboo_jax.report import events

_LOOK_SECS = 0.25


class Narrator:
  """Follows the agent `agent`, and the log in its workdir, in a thread."""

  agent: agent_lib.Agent

  def __init__(
      self, workdir: pathlib.Path, progress: progress_lib.ProgressLine, *, place: str = ""
  ) -> None:
    """Lines that are in the log already are not shown; the run may be in a bucket at `place`."""
    self._progress = progress
    self._workdir, self._place = workdir, place
    self._reader = jsonl.MetricsReader(self._workdir / "metrics.jsonl")
    self._here: set[str] = set()  # Nodes that have been named.
    self._view = 0
    self._waits = ""  # Why nothing happens yet, as told.
    self._is_over = threading.Event()
    self._reader.read()
    self._summary = self._workdir / "summary.json"
    self._former = render_end(self._summary)
    self._thread = threading.Thread(target=self._follow, name="narrator", daemon=True)

  def follow(self, agent: agent_lib.Agent) -> None:
    """Shows nodes and progress as this agent sees them; the one shown before may have ended."""
    self.agent = agent
    if self._thread.ident is None:
      self._thread.start()

  def close(self) -> None:
    """Shows what is left, and how the run ended if it is done."""
    self._is_over.set()
    self._thread.join(timeout=10 * _LOOK_SECS)  # The folder may hang.
    if self.agent.is_done:
      if base.is_bucket(self._place):
        try:
          mirror.Mirror(self._place, self._workdir).pull()  # Another machine may have written it.
        except OSError as error:
          logging.warning("How the run has ended cannot be shown: %s", error)
          return
      lines = render_end(self._summary)
      if lines and lines == self._former:  # All that they tell of was told in a life before.
        lines = ["nothing to do: all steps are done", *lines[-1:]]
      for line in lines:
        self._progress.show_text(line)

  def look(self) -> None:
    """Shows what is new: who comes, what this node waits for until it trains, and then the log."""
    agent = self.agent
    roster, options, show = agent.roster, agent.options, self._progress.show_text
    view = roster.view
    if view.number > self._view:
      self._view = view.number
      size = f"{(n := len(view.members))} node{'s' * (n != 1)}"
      show(f"view {view.number}, {size}: {view.text}")
    alive = roster.registered or ()
    for member in sorted(m for i, m in [*roster.known.items()] if i in alive):
      # The reason of a view tells who joins from then on.
      if not view.number and member.name not in self._here:
        self._here.add(member.name)
        where = f" (zone {member.zone})" if member.zone else ""
        num_here = f"{len(self._here)} of {options.num_nodes} nodes are here"
        show(f"{member.name} joined{where}; {num_here}")
    waits = "waiting for the other nodes"
    if roster.is_member:
      waits = ""
    elif agent.has_worker:
      waits = f"the worker of {options.name} starts, compiles and meets the others"
    elif roster.registered is None:  # At the start, until all have drawn their numbers.
      waits = f"waiting for the records of the run, and for {options.num_nodes} nodes in them"
    if waits != self._waits:
      self._waits = waits
      self._progress.explain(waits or "the first step begins")
    lines = self._reader.read()
    if self._view:  # Before, another run writes the log.
      for line in lines:
        events.show(self._progress, line)

  def _follow(self) -> None:
    try:
      while not self._is_over.wait(_LOOK_SECS):
        self.look()
      self.look()
    except (OSError, ValueError) as error:
      logging.warning("Steps are no longer shown: %s", error)


def render_end(path: pathlib.Path) -> list[str]:
  """Returns lines about the end of a run from its summary, if it has one."""
  if not path.exists():
    return []
  content = json.loads(path.read_text())
  lines = [f"step {r['step']}: {durations.describe(r)}" for r in content["recoveries"]]
  if redundancy := content.get("redundancy"):
    lines.append(progress_lib.render_redundancy(redundancy))
  return [*lines, f"state_sha256={content['state_sha256']}"]
