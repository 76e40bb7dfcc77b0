"""Plans of faults: drawn from a seed, made smaller, and the nodes that they excuse.

Times are in seconds since the beginning; hosts are `n0`, `n1` and so on, where
those beyond the number of nodes start by a `join`. `history` carries plans out.
"""

from collections.abc import Callable, Iterator
import dataclasses
import itertools
import math
import random
import re
from typing import Any, NamedTuple

_HUNG_SECS = 2.0  # A node that is away for longer may be removed.
_FORGOTTEN_SECS = 25.0  # Workers wait 30 s for the judge, from an error before, and in a call.
_FIRST_SECS, _LAST_SECS = 3.0, 11.0  # When faults begin.
_JOIN_SECS = 3.0  # Until a joining node can tell which node is cut off.
_MEND_SECS = 1.5  # Until a link that is whole again is used.


@dataclasses.dataclass(frozen=True)
class SimFault:
  """One fault.

  Attributes:
    kind: A key of `KINDS`.
    hosts: Those that it concerns; source and target of a direction. (): all.
    secs: Its duration, if it has one; a break of 0 s is for good.
  """

  at_secs: float
  kind: str
  hosts: tuple[str, ...] = ()
  secs: float = 0.0

  @property
  def end_secs(self) -> float:
    return self.at_secs + self.secs

  @property
  def blamed(self) -> tuple[str, ...]:
    """The hosts that may be removed because of it."""
    kind = KINDS[self.kind]
    return self.hosts[: kind.num_blamed] if not 0 < self.secs <= kind.excused_secs else ()


class FaultKind(NamedTuple):
  """A kind of fault.

  Attributes:
    num_hosts: Number of hosts that it concerns.
    secs: Range of its duration, if it has one.
    num_blamed: Number of its hosts, from the first, that may be removed because of it,
    excused_secs: if it lasts longer than this.
  """

  num_hosts: int = 0
  secs: tuple[float, float] = (0.0, 0.0)
  num_blamed: int = 0
  excused_secs: float = 0.0


# As the fields of `FaultKind`, in which "hung" is `_HUNG_SECS`, and "forgotten" `_FORGOTTEN_SECS`.
_KINDS = """
join all_workers apart torn                 0  0       0    0
kill vanish hang worker stop_worker notice  1  0       1    0
freeze freeze_agent freeze_make             1  0.2 6   1    hung
busy                                        1  4 8     0    0
reset                                       2  0       0    0
cut cut_one_way                             2  0.2 8   2    hung
cut_all refuse_all                          0  0.2 20  0    0
isolate                                     1  0.2 8   1    hung
refuse                                      2  0.5 4   2    hung
slow slow_judge                             1  1 8     0    0
no_files                                    1  0.5 8   1    hung
bad_route                                   1  0       1    0
cut_off                                     1  0.5 60  1    forgotten
full                                        0  1 5     0    0
hang_judge                                  1  0.5 8   999  forgotten
stale                                       1  0.5 6   0    0
late                                        1  0.5 25  0    0
late_effect                                 1  0.5 60  0    0
judge_errors                                1  0.5 5   0    0
"""
_Range = tuple[float, float]


def _read_kinds() -> Iterator[tuple[str, FaultKind]]:
  named = {"hung": _HUNG_SECS, "forgotten": _FORGOTTEN_SECS}
  for line in _KINDS.strip().splitlines():
    kinds, num, secs, blamed, excused = re.split(" {2,}", line)
    row = FaultKind(int(num), _read_range(secs), int(blamed), named.get(excused, 0.0))
    yield from ((kind, row) for kind in kinds.split())


def _read_range(text: str) -> _Range:
  numbers = [float(number) for number in text.split()]
  return numbers[0], numbers[-1]


KINDS = dict(_read_kinds())
_BREAKS = ("cut", "cut_one_way", "isolate", "refuse", "no_files")
_AWAY = ("cut_off", "hang_judge", "slow_judge", "stale", "judge_errors", "torn", "full")


@dataclasses.dataclass(frozen=True)
class FaultPlan:
  """The faults of a cluster.

  Attributes:
    seed: Of latencies.
    num_steps: Where training ends; 0 for never.
    gather_secs: See `config.ClusterSection`; long where no link breaks, so no node is lost.
    no_progress_secs: Where all links break no node continues alone before this.
  """

  seed: int
  num_nodes: int
  num_steps: int
  faults: tuple[SimFault, ...]
  gather_secs: float = 10.0
  no_progress_secs: float = 10.0

  @property
  def end_secs(self) -> float:
    """The end of the last fault; training continues while machines are busy."""
    ends = (f.at_secs if f.kind == "busy" else f.end_secs for f in self.faults)
    return max([_FIRST_SECS, *ends])

  @property
  def away_secs(self) -> float:
    """The longest time for which a host may not know the records."""
    return max((f.secs for f in self._of(*_AWAY)), default=0.0)

  def excused(self) -> set[str]:
    """Returns the hosts that may be removed.

    They die, hang, or lie at an end of a link that is broken for long. Several
    such links may cost more nodes than necessary; and of two nodes that are left
    neither can tell which one is isolated.
    """
    blamed = {h for f in self.faults for h in f.blamed}
    blamed |= {*self._broken_for_long(), *self._refused_by_several()}
    blamed |= {*self._cut_from_crowded(), *self._without_judge_for_long()}
    dark = self._of("cut_all", "refuse_all")
    outside = {  # They join too late, as no member is reached any more.
        h
        for join in self._of("join")
        for h in join.hosts
        if any(0 < f.at_secs - join.at_secs < _JOIN_SECS for f in dark)
    }
    are_two = any(
        len(self._names(f.at_secs - _JOIN_SECS) - blamed - outside | {*f.hosts}) < 3
        for f in self._of(*_BREAKS, "refuse_all")
    )
    return self._names(self.end_secs) if are_two else blamed

  def _of(self, *kinds: str) -> list[SimFault]:
    """Returns the faults of some kinds, by start."""
    return sorted((f for f in self.faults if f.kind in kinds), key=lambda f: f.at_secs)

  def _names(self, secs: float) -> set[str]:
    """Returns all hosts that have started by then and reach others."""
    first = {f"n{i}" for i in range(self.num_nodes)}
    joined = {h for f in self._of("join") if f.at_secs <= secs for h in f.hosts}
    return (first | joined) - {h for f in self._of("apart") if f.end_secs > secs for h in f.hosts}

  def _refused_by_several(self) -> Iterator[str]:
    """Yields hosts that several others must believe dead at once."""
    for early, late in itertools.combinations(self._of("refuse"), 2):
      if late.at_secs < early.end_secs:
        yield from {*early.hosts} & {*late.hosts}

  def _cut_from_crowded(self) -> Iterator[str]:
    """Yields hosts that cannot connect again to one without files for long."""
    for crowd in self._of("no_files"):
      if crowd.secs > _HUNG_SECS:
        for f in self._of(*_BREAKS, "reset", "all_workers"):
          end_secs = math.inf if f.kind in _BREAKS and not f.secs else f.end_secs + _JOIN_SECS
          if crowd.at_secs < end_secs and f.at_secs < crowd.end_secs:
            yield from f.hosts or self._names(self.end_secs)  # All connect to all.

  def _broken_for_long(self) -> Iterator[str]:
    """Yields hosts of links that successive faults keep broken for long."""
    breaks = self._of(*_BREAKS)
    hosts = {h for f in breaks for h in f.hosts}
    for pair in itertools.combinations(["", *sorted(hosts)], 2):
      chain: set[str] = set()
      start_secs, end_secs = 0.0, -math.inf
      for fault in breaks:
        if {*fault.hosts} <= {*pair}:
          if fault.at_secs > end_secs + _MEND_SECS:
            chain, start_secs = set(), fault.at_secs
          chain.update(fault.hosts)
          end_secs = max(end_secs, fault.end_secs if fault.secs else math.inf)
          if end_secs > start_secs + _HUNG_SECS:
            yield from chain

  def _without_judge_for_long(self) -> Iterator[str]:
    """Yields hosts that faults, one after the other, keep from the judge for long."""
    for host in self._names(self.end_secs):
      start_secs, end_secs = 0.0, -math.inf
      for fault in self._of("cut_off", "hang_judge", "judge_errors", "full"):
        if host in (fault.hosts or (host,)):
          start_secs = fault.at_secs if fault.at_secs > end_secs else start_secs
          end_secs = max(end_secs, fault.end_secs)
          if end_secs > start_secs + _FORGOTTEN_SECS:
            yield host


def shrink(plan: FaultPlan, fails: Callable[[FaultPlan], Any]) -> FaultPlan:
  """Returns a smaller plan that fails too, each fault of which is needed."""
  i = 0
  while i < len(plan.faults):
    smaller = dataclasses.replace(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    plan, i = (smaller, 0) if fails(smaller) else (plan, i + 1)
  return plan


# Draws.


class _Part(NamedTuple):
  """A part of a word of a mode: one or several faults, see `_WORDS`."""

  kinds: str
  hosts: str
  at_secs: _Range
  secs: _Range | None
  times: _Range


# Each word of a mode is one or several parts. A part has kinds, of which one is drawn; the hosts;
# the range of its start, since that of the word; that of its duration, by default that of the
# kind; and that of its repetitions. Hosts are drawn once for a word: "a" and "b" are any two, "m"
# is one of the first four, "+" one that joins, "new" all of these, "old" all others; with "each"
# in front there is a fault for each.
_WORDS = """
join            join                         +
slow_join       join                         +
slow_join       slow                         new         0.01       3 5
pair            kill                         a
pair            kill                         b           0.001 0.1
# And others join.
wipe_out        kill vanish                  each old    0 0.2
wipe_out        join                         +           0 6        -        1 4
# And one of them falls silent.
all_busy        busy                         each old    0          50 60
all_busy        vanish hang                  a           1
# The node that should write the next view cannot.
handover        cut_off                      a           0          45 60
handover        kill                         b           0.5
# Two views within milliseconds,
join_and_death  kill worker                  a
join_and_death  join                         +           -1.3 -1
# and a node that learns of both at once.
late_news       freeze                       b           0          0.9 1.8
late_news       kill worker                  a           0.1 0.5
late_news       join                         +           -0.8 -0.4
bad_route       join                         +
bad_route       bad_route                    new m
# For good.
severed         cut cut_one_way              a b         0          0
# Newcomers reach the records, and no other node.
apart           join                         +           0          -        1 4
apart           apart                        new         0          4 40
# Long after others have continued.
woken           freeze freeze_agent          a           0          9 12
# One receives all votes, and no other receives its own.
lost_vote       slow                         b           0          10
lost_vote       cut_one_way                  a each old  1          8
lost_vote       freeze freeze freeze_agent   a           1 1.3      7
# It is lost with a connection, as a node joins.
last_vote       slow                         a           0          6
last_vote       join                         +
last_vote       reset                        a b         1.5 4      -        12
# For all.
stall           hang_judge
lose_answers    judge_errors
# The place, not one way to it.
all_hang        hang_judge                   old         0          0.5 20
# The view of a death cannot be read until it is repaired, so that all wait for the next.
torn_view       torn                         -           0          12
torn_view       kill                         a           0.01
# The node that begins a life is stopped in it.
begin_late      freeze_make                  a           0          1 6
begin_late      all_workers                  -           0.1
two_lives       all_workers
two_lives       all_workers                  -           6 9
# A newcomer that hears no member asks, late. To hang for longer is too long, see `judge.ask`.
ask_late        join                         +
ask_late        apart                        new         0          40 70
ask_late        late late_effect             new         0.2        0.5 25   0 1
ask_late        hang_judge                   old         3          0.5 20
# A newcomer sees no sign of life in the records.
hung_and_join   hang_judge                   -           0          0.5 20
hung_and_join   join                         +           0.3
# A node joins at the end of it, or dies in it.
lapse           hang_judge full              -           0          7
lapse           join                         +           6.5 7.1
away            hang_judge full              -           0          35 45
away            kill                         a           1
"""


def _read_words() -> dict[str, list[_Part]]:
  words: dict[str, list[_Part]] = {}
  for line in _WORDS.strip().splitlines():
    if not line.startswith("#"):
      word, kinds, *cells = re.split(" {2,}", line)
      hosts, at, secs, times = ("" if c == "-" else c for c in [*cells, *"----"][:4])
      long = _read_range(secs) if secs else None
      part = _Part(kinds, hosts, _read_range(at or "0"), long, _read_range(times or "1"))
      words.setdefault(word, []).append(part)
  return words


_PARTS = _read_words()
MODES = {
    "kill": "kill kill join",
    "crash": "kill vanish worker join pair wipe_out",
    "stop": "kill join freeze freeze busy stop_worker all_busy",
    "net": "reset reset cut cut_one_way severed isolate refuse slow bad_route kill",
    "judge": "stall cut_off lose_answers full slow_judge kill join worker lapse away"
    " apart handover",
    "workers": "worker worker join all_workers notice kill",
}
MODES["all"] = " ".join(sorted({*" ".join(MODES.values()).split()})) + " no_files no_files"
MODES["large"] = f"{MODES['crash']} {MODES['net']} freeze no_files no_files"
MODES["race"] = (
    "join_and_death late_news late_news woken freeze freeze_agent worker reset lost_vote"
    " lost_vote last_vote"
)
MODES["dark"] = "cut_all cut_all refuse_all kill worker join"
MODES["votes"] = "last_vote last_vote last_vote join"
# Not among `all`, as recoveries take longer.
MODES["late"] = (
    "hang_judge all_hang stale late late_effect judge_errors torn_view freeze_make begin_late"
    " two_lives kill join worker ask_late cut_off hung_and_join"
)
MODES["ask"] = "ask_late"


def draw(mode: str, seed: int) -> FaultPlan:
  """Returns a plan of a mode; the same each time."""
  rng = random.Random(f"{mode} {seed}")
  num_nodes = rng.choice([8, 8, 9, 12] if mode == "large" else [4, 4, 5, 6])
  faults: list[SimFault] = []
  names = [f"n{i}" for i in range(num_nodes)]
  at_secs = rng.uniform(_FIRST_SECS, _FIRST_SECS + 3.0)
  if rng.random() < 0.2:  # One node more, at the beginning.
    word = rng.choice(["join", "slow_join"])
    faults += _draw_faults(rng, word, rng.uniform(0.0, 1.5), names)
  hurt: set[str] = set()
  while at_secs < _LAST_SECS:
    word = rng.choice(MODES[mode].split())
    if word == "torn_view" and any(f.kind == "torn" for f in faults):
      continue  # Each takes its time.
    for fault in _draw_faults(rng, word, at_secs, names):
      if len(hurt.union(fault.blamed)) < len(names) or word == "wipe_out":
        hurt.update(fault.blamed)
        faults.append(fault)
    at_secs += rng.choice([rng.uniform(0.0, 0.3), rng.uniform(0.3, 6.0)])
  num_steps = rng.choice([0, 0, 0, rng.randint(4, 20)])
  return FaultPlan(
      *(seed, num_nodes, num_steps, tuple(faults)),
      gather_secs=100.0 if mode == "workers" else 10.0,
      no_progress_secs=60.0 if mode == "dark" else 10.0,
  )


def _draw_faults(
    rng: random.Random, word: str, at_secs: float, names: list[str]
) -> Iterator[SimFault]:
  """Yields the faults of a word; adds hosts that join to `names`."""
  one, other = rng.sample(names, 2)
  known = {"a": [one], "b": [other], "m": [rng.choice(names[:4])], "old": [*names], "new": []}
  simple = " ".join("ab"[: KINDS[word].num_hosts]) if word in KINDS else ""
  for part in _PARTS.get(word) or [_Part(word, simple, (0.0, 0.0), None, (1, 1))]:
    for _ in range(rng.randint(*map(int, part.times))):
      if part.hosts == "+":
        names.append(f"n{len(names)}")
        known |= {"+": names[-1:], "new": [*known["new"], names[-1]]}
      fixed, _, each = part.hosts.partition("each ")
      hosts = [host for name in fixed.split() for host in known[name]]
      others = [[host] for host in known[each] if host not in hosts] if each else [[]]
      for more in others:
        kind = rng.choice(part.kinds.split())
        begin_secs = at_secs + rng.uniform(*part.at_secs)
        secs = rng.uniform(*(part.secs or KINDS[kind].secs))
        yield SimFault(round(begin_secs, 3), kind, (*hosts, *more), round(secs, 3))
