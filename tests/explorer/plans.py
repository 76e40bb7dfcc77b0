"""Faults as a plan: drawn from a seed, carried out, and made smaller.

Times are in seconds since the beginning; hosts are `n0`, `n1` and so on, where
those beyond the number of nodes come later, by a `join`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import itertools
import math
import random
from typing import Any

from tests.explorer import faults as faults_lib
from tests.explorer.faults import KINDS, SimFault  # noqa

_SIZES = {"large": [8, 9, 10, 12]}
_FIRST_SECS, _LAST_SECS = 3.0, 11.0  # When faults begin.
_AWAY = {"stall", "cut_off", "hang_judge", "slow_judge", "stale", "judge_errors", "torn"}
_AWAY |= {"lose_answers", "full", "freeze_agent"}
_BREAKS = ("cut", "cut_one_way", "isolate", "refuse", "no_files")
_JOIN_SECS = 3.0  # Until one that has come can tell who is cut off.
_TORN_SECS = 12.0  # Until a view that is damaged is mended.
_MEND_SECS = 1.5  # Until a link that is whole again has been tried.


@dataclasses.dataclass(frozen=True)
class FaultPlan:
  """What happens to a cluster.

  Attributes:
    seed: Of latencies; what is owed is dealt by shares if it is odd.
    num_steps: Where training ends; 0 for never.
    gather_secs: See `config.ClusterSection`. Where no link breaks nobody need be given up for lost.
    no_progress_secs: Where all links break nobody goes on alone before.
  """

  seed: int
  num_nodes: int
  num_steps: int
  faults: tuple[SimFault, ...]
  gather_secs: float = 10.0
  no_progress_secs: float = 10.0

  @property
  def end_secs(self) -> float:
    """When the last fault ends from which somebody may need to recover."""
    return max([_FIRST_SECS, *(f.at_secs + f.secs for f in self.faults)])

  @property
  def away_secs(self) -> float:
    """How long somebody may not know what the records say."""
    return max((f.secs for f in self.faults if f.kind in _AWAY), default=0.0)

  def excused(self) -> set[str]:
    """Returns the hosts that the others may go on without.

    They die, hang, or lie at an end of a link that is broken for long. A plan
    with several of those may need more nodes left out than it should; and of
    two that are left nobody can say which one is isolated.
    """
    blamed = {h for f in self.faults for h in KINDS[f.kind].blamed(f)}
    blamed |= {*self._broken_for_long(), *self._refused_by_several()}
    blamed |= {*self._cut_from_crowded()}
    are_two = any(
        len(self._names(f.at_secs - _JOIN_SECS) - blamed | {*f.hosts}) < 3
        for f in self.faults
        if f.kind in (*_BREAKS, "refuse_all")
    )
    return self._names(self.end_secs) if are_two else blamed

  def _names(self, secs: float) -> set[str]:
    """Returns all hosts that have come by then, and reach others."""
    first = {f"n{i}" for i in range(self.num_nodes)}
    late = {
        host
        for fault in self.faults
        for host in fault.hosts
        if (fault.kind == "join" and fault.at_secs > secs)
        or (fault.kind == "apart" and fault.at_secs + fault.secs > secs)
    }
    joins = [f.hosts for f in self.faults if f.kind == "join"]
    return first.union(*joins) - late

  def _refused_by_several(self) -> Iterator[str]:
    """Yields hosts that are certain to be dead for several others at once."""
    refused = [f for f in self.faults if f.kind == "refuse"]
    for one, other in itertools.combinations(refused, 2):
      late, early = sorted((one, other), key=lambda f: -f.at_secs)
      if late.at_secs < early.at_secs + early.secs:
        yield from {*one.hosts} & {*other.hosts}

  def _cut_from_crowded(self) -> Iterator[str]:
    """Yields who cannot connect anew to one without files for long."""
    links = [f for f in self.faults if f.kind in (*_BREAKS, "reset")]
    for crowd in self.faults:
      if crowd.kind == "no_files" and crowd.secs > faults_lib.HUNG_SECS:
        for f in links:
          forever = 0.0 if f.kind == "reset" else math.inf
          end_secs = f.at_secs + (f.secs or forever) + _MEND_SECS
          is_late = f.at_secs >= crowd.at_secs + crowd.secs
          if is_late or end_secs <= crowd.at_secs:
            continue
          if f.kind == "isolate" or {*crowd.hosts} & {*f.hosts}:
            yield from f.hosts
      anew = [f.at_secs for f in self.faults if f.kind == "all_workers"]
      begin_secs, end_secs = crowd.at_secs, crowd.at_secs + crowd.secs
      if any(begin_secs - _JOIN_SECS < s < end_secs for s in anew):
        yield from self._names(self.end_secs)  # All connect to all.

  def _broken_for_long(self) -> Iterator[str]:
    """Yields hosts of links that faults break one after another."""
    breaks = [f for f in self.faults if f.kind in _BREAKS]
    breaks.sort(key=lambda f: f.at_secs)
    hosts = {h for f in breaks for h in f.hosts}
    for pair in itertools.combinations(["", *sorted(hosts)], 2):
      chain: set[str] = set()
      start_secs, end_secs = 0.0, -math.inf
      for fault in breaks:
        if {*fault.hosts} <= {*pair}:
          if fault.at_secs > end_secs + _MEND_SECS:
            chain, start_secs = set(), fault.at_secs
          chain.update(fault.hosts)
          end_secs = max(end_secs, fault.at_secs + (fault.secs or math.inf))
          if end_secs > start_secs + faults_lib.HUNG_SECS:
            yield from chain


def from_dict(content: Mapping[str, Any]) -> FaultPlan:
  """Returns the plan that `dataclasses.asdict` has made plain."""
  faults = [{**f, "hosts": tuple(f["hosts"])} for f in content["faults"]]
  found = tuple(SimFault(**f) for f in faults)
  return FaultPlan(**{**content, "faults": found})


MODES = {
    "kill": "kill kill join",
    "crash": "kill vanish worker join pair wipe_out",
    "stop": "kill join freeze freeze busy stop_worker all_busy",
    "net": "reset reset cut cut_one_way severed isolate refuse slow bad_route kill",
    "judge": "stall cut_off lose_answers full slow_judge kill join worker lapse away"
    " apart handover",
    "workers": "worker worker join all_workers notice kill",
}
MODES["all"] = " ".join(sorted({*" ".join(MODES.values()).split()})) + (" no_files no_files")
MODES["large"] = f"{MODES['crash']} {MODES['net']} freeze no_files no_files"
MODES["race"] = (
    "join_and_death join_and_death freeze freeze_agent worker reset"
    " lost_vote lost_vote last_vote"
)
MODES["dark"] = "cut_all cut_all refuse_all kill worker join"
MODES["votes"] = "last_vote last_vote last_vote join"
# Not among `all`, as it takes longer until all goes on.
MODES["late"] = (
    "hang_judge all_hang stale late late_effect judge_errors torn_view"
    " freeze_make begin_late two_lives kill join worker ask_late cut_off"
    " hung_and_join"
)


def draw(mode: str, seed: int) -> FaultPlan:
  """Returns a plan of a mode; the same each time."""
  rng = random.Random(f"{mode} {seed}")
  num_nodes = rng.choice(_SIZES.get(mode, [4, 4, 5, 6]))
  faults: list[SimFault] = []
  names = [f"n{i}" for i in range(num_nodes)]
  at_secs = rng.uniform(_FIRST_SECS, _FIRST_SECS + 3.0)
  if rng.random() < 0.2:  # One too many, just when all begin.
    faults.append(_join(names, rng.uniform(0.5, 1.5)))
  hurt: set[str] = set()
  while at_secs < _LAST_SECS:
    word = rng.choice(MODES[mode].split())
    if word == "torn_view" and any(f.kind == "torn" for f in faults):
      continue  # Each takes its time.
    for fault in _draw_faults(rng, word, at_secs, names):
      blamed = {*KINDS[fault.kind].blamed(fault)}
      is_one_left = len(blamed | hurt) < len(names)
      if is_one_left or word == "wipe_out":
        hurt |= blamed
        faults.append(fault)
    at_secs += rng.choice([rng.uniform(0.0, 0.3), rng.uniform(0.3, 6.0)])
  num_steps = rng.choice([0, 0, 0, rng.randint(8, 40)])
  return FaultPlan(
      *(seed, num_nodes, num_steps, tuple(faults)),
      gather_secs=100.0 if mode == "workers" else 10.0,
      no_progress_secs=60.0 if mode == "dark" else 10.0,
  )


def _fault(at_secs: float, kind: str, hosts: Iterable[str] = (), secs: float = 0.0) -> SimFault:
  """Returns a fault with times in whole milliseconds."""
  return SimFault(round(at_secs, 3), kind, tuple(hosts), round(secs, 3))


def _join(names: list[str], at_secs: float) -> SimFault:
  names.append(f"n{len(names)}")
  return _fault(at_secs, "join", names[-1:])


def _draw_faults(
    rng: random.Random, word: str, at_secs: float, names: list[str]
) -> Iterator[SimFault]:
  """Yields the faults of a word; those that come are added to `names`."""
  at_secs = round(at_secs, 3)
  match word:
    # Nodes die and come.
    case "join":
      yield _join(names, at_secs)
    case "pair":
      gap_secs = rng.choice([0.001, 0.01, 0.03, 0.06, 0.1])
      for i, host in enumerate(rng.sample(names, 2)):
        yield _fault(at_secs + i * gap_secs, "kill", (host,))
    case "wipe_out":  # And others come.
      for host in list(names):
        kind = rng.choice(["kill", "vanish"])
        yield _fault(at_secs + rng.uniform(0.0, 0.2), kind, (host,))
      for _ in range(rng.randint(1, 4)):
        yield _join(names, at_secs + rng.uniform(0.0, 6.0))
    case "all_busy":  # And one of them says nothing any more.
      secs = rng.uniform(20.0, 30.0)
      for host in names:
        yield _fault(at_secs, "busy", (host,), secs)
      kind = rng.choice(["vanish", "hang"])
      yield _fault(at_secs + 1.0, kind, (rng.choice(names),))
    case "handover":  # Who should write the next view cannot.
      one, other = rng.sample(names, 2)
      yield _fault(at_secs, "cut_off", (one,), rng.uniform(45.0, 60.0))
      yield _fault(at_secs + 0.5, "kill", (other,))
    case "join_and_death":  # Two views within milliseconds.
      kind = rng.choice(["kill", "worker"])
      yield _fault(at_secs, kind, (rng.choice(names),))
      yield _join(names, at_secs - rng.uniform(1.0, 1.3))
    # Links break.
    case "bad_route":
      member = rng.choice(names[:4])  # One of those to begin with.
      join = _join(names, at_secs)
      yield _fault(at_secs, word, (*join.hosts, member))
      yield join
    case "severed":  # A link is broken for good, in one way or both.
      kind = rng.choice(["cut", "cut_one_way"])
      yield _fault(at_secs, kind, rng.sample(names, 2))
    case "apart":  # Newcomers see the store, and nobody else.
      joins = [_join(names, at_secs) for _ in range(rng.randint(1, 4))]
      hosts = [host for join in joins for host in join.hosts]
      yield _fault(at_secs, word, hosts, rng.uniform(4.0, 40.0))
      yield from joins
    case "lost_vote":  # One hears all votes, and nobody hears its own.
      one, other = rng.sample(names, 2)
      yield _fault(at_secs, "slow", (other,), 10.0)
      cut_secs = at_secs + 1.0
      for host in names:
        if host != one:
          yield _fault(cut_secs, "cut_one_way", (one, host), 8.0)
      kind = rng.choice(["freeze", "freeze", "freeze_agent"])
      yield _fault(cut_secs + rng.uniform(0.0, 0.3), kind, (one,), 7.0)
    case "last_vote":  # It is lost with a connection, as one comes.
      one, other = rng.sample(names, 2)
      yield _fault(at_secs, "slow", (one,), 6.0)
      yield _join(names, at_secs)
      for i in range(12):
        reset_secs = at_secs + 1.5 + 0.2 * i + rng.uniform(0.0, 0.1)
        yield _fault(reset_secs, "reset", (one, other))
    # What nodes share stalls.
    case "all_hang":  # The place, not one way to it.
      secs = rng.choice([rng.uniform(0.5, 20.0), faults_lib.FORGOTTEN_SECS])
      yield _fault(at_secs, "hang_judge", names, secs)
    case "torn_view":  # That of a death, so that all wait for the next.
      yield _fault(at_secs, "torn", (), _TORN_SECS)
      yield _fault(at_secs + 0.01, "kill", (rng.choice(names),))
    case "begin_late":  # Who begins a life is stopped in it.
      host = rng.choice(names)
      yield _fault(at_secs, "freeze_make", (host,), rng.uniform(1.0, 6.0))
      yield _fault(at_secs + 0.1, "all_workers")
    case "two_lives":  # All nodes restart twice.
      for begin_secs in (at_secs, at_secs + rng.uniform(6.0, 9.0)):
        yield _fault(begin_secs, "all_workers")
    case "ask_late":  # A newcomer that hears nobody asks, and is late.
      hosts = _join(names, at_secs).hosts
      yield _fault(at_secs, "apart", hosts, rng.uniform(40.0, 70.0))
      yield _fault(at_secs, "join", hosts)
      if rng.random() < 0.5:
        kind = rng.choice(["late", "late_effect"])
        yield _fault(at_secs + 0.2, kind, hosts, rng.uniform(0.5, 25.0))
      hang_secs = rng.choice([rng.uniform(0.5, 20.0), faults_lib.FORGOTTEN_SECS])
      yield _fault(at_secs + 3.0, "hang_judge", names[:-1], hang_secs)
    case "hung_and_join":  # A newcomer sees no sign of life in the records.
      yield _fault(at_secs, "stall", (), rng.uniform(0.5, 20.0))
      yield _join(names, at_secs + 0.3)
    case "lapse" | "away":  # One comes at the end, or dies in it.
      secs = rng.uniform(*((5.5, 8.0) if word == "lapse" else (35.0, 45.0)))
      yield _fault(at_secs, rng.choice(["stall", "full"]), (), secs)
      if word == "lapse":
        yield _join(names, at_secs + secs + rng.uniform(-0.5, 0.1))
      else:
        yield _fault(at_secs + 1.0, "kill", (rng.choice(names),))
    case _:
      kind = KINDS[word]
      hosts = rng.sample(names, kind.num_hosts)
      yield _fault(at_secs, word, hosts, rng.uniform(*kind.secs))


def shrink(plan: FaultPlan, fails: Callable[[FaultPlan], Any]) -> FaultPlan:
  """Returns a smaller plan that fails too, of which each fault is needed."""
  i = 0
  while i < len(plan.faults):
    smaller = dataclasses.replace(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    plan, i = (smaller, 0) if fails(smaller) else (plan, i + 1)
  return plan
