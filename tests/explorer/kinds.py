"""Kinds of faults, and one fault of a plan."""

from collections.abc import Callable
import dataclasses

HUNG_SECS = 2.0  # Who is away for longer may be left out.
FORGOTTEN_SECS = 30.0  # No worker waits for so long for the judge.


@dataclasses.dataclass(frozen=True)
class SimFault:
  """One fault.

  Attributes:
    kind: A key of `KINDS`.
    hosts: Whom it concerns; of a direction, source and target.
    secs: How long it lasts, if it does; a break of 0 s is for good.
  """

  at_secs: float
  kind: str
  hosts: tuple[str, ...] = ()
  secs: float = 0.0


@dataclasses.dataclass(frozen=True)
class FaultKind:
  """A kind of fault.

  Attributes:
    num_hosts: Number of hosts that it concerns.
    secs: Between how many seconds it lasts, if it does.
    blamed: Who may be left out because of it.
  """

  num_hosts: int = 0
  secs: tuple[float, float] = (0.0, 0.0)
  blamed: Callable[[SimFault], tuple[str, ...]] = lambda fault: ()


def _if_long(count: int) -> Callable[[SimFault], tuple[str, ...]]:
  return lambda f: () if 0 < f.secs <= HUNG_SECS else f.hosts[:count]


def _if_forgotten(fault: SimFault) -> tuple[str, ...]:
  return fault.hosts if fault.secs >= FORGOTTEN_SECS else ()


_VICTIM = FaultKind(1, blamed=lambda fault: fault.hosts)
KINDS = {
    "join": FaultKind(),
    "kill": _VICTIM,
    "vanish": _VICTIM,
    "hang": _VICTIM,
    "worker": _VICTIM,
    "all_workers": FaultKind(),
    "stop_worker": _VICTIM,
    "notice": _VICTIM,
    "freeze": FaultKind(1, (0.2, 6.0), blamed=_if_long(1)),
    "busy": FaultKind(1, (4.0, 8.0)),
    "reset": FaultKind(2),
    "cut": FaultKind(2, (0.2, 8.0), blamed=_if_long(2)),
    "cut_one_way": FaultKind(2, (0.2, 8.0), blamed=_if_long(2)),
    "cut_all": FaultKind(0, (0.2, 20.0)),
    "isolate": FaultKind(1, (0.2, 8.0), blamed=_if_long(1)),
    "refuse": FaultKind(2, (0.5, 4.0), blamed=_if_long(2)),
    "refuse_all": FaultKind(0, (0.2, 20.0)),
    "slow": FaultKind(1, (1.0, 8.0)),
    "no_files": FaultKind(1, (0.5, 8.0), blamed=_if_long(1)),
    "bad_route": FaultKind(1, blamed=lambda fault: fault.hosts[:1]),
    "stall": FaultKind(0, (0.5, 8.0)),
    "cut_off": FaultKind(1, (0.5, 60.0), blamed=_if_forgotten),
    "lose_answers": FaultKind(0, (1.0, 5.0)),
    "full": FaultKind(0, (1.0, 5.0)),
    "apart": FaultKind(),
    "hang_judge": FaultKind(1, (0.5, 8.0), blamed=_if_forgotten),
    "slow_judge": FaultKind(1, (1.0, 8.0)),
    "freeze_agent": FaultKind(1, (0.2, 6.0), blamed=_if_long(1)),
    "stale": FaultKind(1, (0.5, 6.0)),
    "late": FaultKind(1, (0.5, 25.0)),
    "late_effect": FaultKind(1, (0.5, 60.0)),
    "judge_errors": FaultKind(1, (0.5, 5.0)),
    "torn": FaultKind(),
    "freeze_make": FaultKind(1, (0.2, 6.0), blamed=_if_long(1)),
}
