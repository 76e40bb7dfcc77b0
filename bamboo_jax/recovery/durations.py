"""Times of recoveries, and how a summary reports them.

Workers know when they learned of a death. Its own time is known only to its
cause: the launcher that killed the node, or the process that hosts all nodes. A
time that was not measured is None.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import itertools
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import types


@dataclasses.dataclass
class RecoveryTimes:
  """One change of the view in which nodes with a role were lost.

  Times are on `time.perf_counter`, which all processes of a machine share.

  Attributes:
    step: Number of the interrupted step, or of the next one, from 1, as in the
      log.
    nodes: Numbers of the lost nodes that had a role.
    names: Their names, in the same order.
    victims: Their places as `pipeline/stage`.
    heirs: Names of the shadows that took these places, if the rung is "shadow".
    view_at_secs: Arrival of the new view at the member that wrote this.
    died_at_secs: Death of the first of the nodes; None if not known here.
    silence_to_view_secs: See `views.View.silence_secs`.
    agreed_at_secs: End of the first agreement on how to continue.
    ready_at_secs: The rows of the rest of the step are planned; None if the
      step ended without them.
    step_end_at_secs: Commit of the step, less its waits for others to join; None before.
    are_owed_measured: Whether the next two are known.
    first_owed_at_secs: Start of the first owed pass of a lost stage on any
      node, after `ready_at_secs`; None if none was owed.
    last_owed_at_secs: End of the last one.
  """

  step: base.StepId
  view: base.ViewId
  nodes: tuple[base.NodeId, ...]
  names: tuple[str, ...]
  victims: tuple[str, ...]
  rung: str
  reason: str
  view_at_secs: float
  agreed_at_secs: float
  heirs: tuple[str, ...] = ()
  died_at_secs: float | None = None
  silence_to_view_secs: float | None = None
  ready_at_secs: float | None = None
  step_end_at_secs: float | None = None
  are_owed_measured: bool = False
  first_owed_at_secs: float | None = None
  last_owed_at_secs: float | None = None

  @property
  def places(self) -> tuple[types.Place, ...]:
    """The places that the lost nodes owned."""
    return tuple(map(types.Place.parse, self.victims))

  @property
  def planning_secs(self) -> float:
    """Seconds from the new view until the rest was planned or the step ended.

    Only after the end of the step; nothing is computed in this time.
    """
    end_secs = self.ready_at_secs
    if end_secs is None:
      end_secs = self.step_end_at_secs
    assert end_secs is not None, "The step has not ended."
    return max(0.0, end_secs - self.view_at_secs)

  def set_owed(self, span: tuple[float, float] | None) -> None:
    """Sets the times of owed passes, once the step has ended; None: there were none.

    They are in seconds since a member had planned the rest, as clocks of machines differ.
    """
    ready_secs, end_secs = self.ready_at_secs, self.step_end_at_secs
    self.are_owed_measured = True
    if span and ready_secs is not None:
      assert end_secs is not None, "The step has not ended."
      # Members are ready some milliseconds apart.
      first, last = (min(ready_secs + t, end_secs) for t in span)
      self.first_owed_at_secs, self.last_owed_at_secs = first, last


# The events of a recovery, in the order in which they happen.
EVENTS = (
    *("died_at_secs", "view_at_secs", "agreed_at_secs", "ready_at_secs"),
    *("first_owed_at_secs", "last_owed_at_secs", "step_end_at_secs"),
)


_TOLD = (  # As it is.
    *("step", "nodes", "names", "victims", "rung", "heirs", "view"),
    *("silence_to_view_secs", "reason"),
)


def find_disorder(recovery: Mapping[str, Any]) -> str:
  """Returns two events of a recovery in the wrong order; "" if there are none.

  `recovery` is a `RecoveryTimes` as a dict. So no duration is negative.
  """
  known = [e for e in EVENTS if recovery.get(e) is not None]
  for before, after in itertools.pairwise(known):
    if recovery[after] < recovery[before]:
      return f"{after} is {recovery[before] - recovery[after]} before {before}"
  return ""


def report(
    recoveries: Iterable[Mapping[str, Any]], kills: Mapping[base.NodeId, float]
) -> list[dict[str, Any]]:
  """Returns recoveries as `summary.json` reports them: durations, not times.

  `pause_secs` is the time from the death, or from the new view if that of the
  death is not known, to the end of the step. A duration is None if its start or
  end was not measured. If no pass was owed, `redo_secs` is 0.

  Args:
    recoveries: Each `RecoveryTimes` as a dict; logs of older versions lack some
      entries.
    kills: Time of death of each node that the caller has killed, by number, on
      the same clock.
  """
  reported = []
  for r in recoveries:
    view_secs = r["view_at_secs"]
    # A node killed after the view died of something else.
    kill_secs = [kills[n] for n in r["nodes"] if kills.get(n, view_secs + 1) <= view_secs]
    died_secs = r.get("died_at_secs")
    # Else another of them may have died earlier, unknown here.
    if kill_secs and len(kill_secs) == len(r["nodes"]):
      died_secs = min(kill_secs)
    first_secs = r["first_owed_at_secs"]
    redo_secs = _between(first_secs, r["last_owed_at_secs"])
    if first_secs is None and r.get("are_owed_measured"):
      redo_secs = 0.0
    reported.append(
        {"names": [f"node {n}" for n in r["nodes"]], "heirs": (), "silence_to_view_secs": None}
        | {name: r[name] for name in _TOLD if name in r}
        | {
            "detect_secs": _between(died_secs, view_secs),
            "consensus_secs": _between(view_secs, r["agreed_at_secs"]),
            "rebuild_secs": _between(r["agreed_at_secs"], r["ready_at_secs"]),
            "redo_secs": redo_secs,
            "kill_to_first_instruction_secs": _between(died_secs, first_secs),
            "kill_to_step_end_secs": _between(died_secs, r["step_end_at_secs"]),
            "pause_secs": _between(
                view_secs if died_secs is None else died_secs, r["step_end_at_secs"]
            ),
        }
    )
  return reported


def find_kills(
    recoveries: Iterable[Mapping[str, Any]], reported: Iterable[Mapping[str, Any]]
) -> dict[base.NodeId, float]:
  """Returns `kills` of `report`, which has `reported` the same recoveries, or some of them.

  Of several nodes with one number, in several lives of a run, the last counts.
  """
  known = {(r["step"], r["view"]): r.get("detect_secs") for r in reported}
  found = ((n, r["view_at_secs"], r["step"], r["view"]) for r in recoveries for n in r["nodes"])
  last = {n: (view_secs, known.get((step, view))) for n, view_secs, step, view in found}
  return {n: view_secs - secs for n, (view_secs, secs) in last.items() if secs is not None}


def _between(start_secs: float | None, end_secs: float | None) -> float | None:
  """Returns a duration; None if start or end is not known."""
  if start_secs is None or end_secs is None:
    return None
  return end_secs - start_secs


def describe(reported: Mapping[str, Any]) -> str:
  """Returns a recovery of `report` as a sentence, without its step."""
  said = [_say("noticed after", reported["detect_secs"])]
  if reported["detect_secs"] is None:
    said.append(_say("not heard for", reported["silence_to_view_secs"]))
  said.append(_say("agreed in", reported["consensus_secs"]))
  redo_secs = reported["redo_secs"]
  is_idle = redo_secs == 0.0
  said.append("nothing redone" if is_idle else _say("redone in", redo_secs))
  said.append(_say("pause", reported["pause_secs"]))
  return f"{describe_death(reported)} ({', '.join(said)})"


def describe_death(recovery: Mapping[str, Any]) -> str:
  """Returns who died and what followed, as text."""
  return f"{describe_loss(recovery)} died; {describe_answer(recovery)}"


def describe_loss(recovery: Mapping[str, Any]) -> str:
  """Returns the names of the lost nodes and their places, as text."""
  names, places = recovery["names"], recovery["victims"]
  stages = "stages" if len(places) > 1 else "stage"
  return f"{' and '.join(names)} ({stages} {', '.join(places)})"


def describe_answer(recovery: Mapping[str, Any]) -> str:
  """Returns the action of a recovery, as text."""
  if recovery["rung"] != "shadow":
    return f"{recovery['rung']}: {recovery['reason']}"
  whose = "their shadows" if len(recovery["names"]) > 1 else "its shadow"
  return f"{whose} {' and '.join(dict.fromkeys(recovery['heirs']))} took over"


def _say(what: str, secs: float | None) -> str:
  return f"{what}: unknown" if secs is None else f"{what} {secs:.2f} s"
