"""Kinds of faults, and one fault of a plan."""

from collections.abc import Callable
import dataclasses

HUNG_SECS = 2.0  # Who is away for longer may be left out.
FORGOTTEN_SECS = 40.0  # Nobody waits for so long for an answer in the folder.


@dataclasses.dataclass(frozen=True)
class Fault:
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
class Kind:
  """A kind of fault.

  Attributes:
    num_hosts: Number of hosts that it concerns.
    secs: Between how many seconds it lasts, if it does.
    blamed: Who may be left out because of it.
  """

  num_hosts: int = 0
  secs: tuple[float, float] = (0.0, 0.0)
  blamed: Callable[[Fault], tuple[str, ...]] = lambda fault: ()


def _if_long(count: int) -> Callable[[Fault], tuple[str, ...]]:
  return lambda f: () if 0 < f.secs <= HUNG_SECS else f.hosts[:count]


def _if_forgotten(fault: Fault) -> tuple[str, ...]:
  return fault.hosts if fault.secs >= FORGOTTEN_SECS else ()


_VICTIM = Kind(1, blamed=lambda fault: fault.hosts)
KINDS = {
    "join": Kind(),
    "kill": _VICTIM,
    "vanish": _VICTIM,
    "hang": _VICTIM,
    "worker": _VICTIM,
    "all_workers": Kind(),
    "stop_worker": _VICTIM,
    "notice": _VICTIM,
    "freeze": Kind(1, (0.2, 6.0), blamed=_if_long(1)),
    "busy": Kind(1, (4.0, 8.0)),
    "reset": Kind(2),
    "cut": Kind(2, (0.2, 8.0), blamed=_if_long(2)),
    "cut_one_way": Kind(2, (0.2, 8.0), blamed=_if_long(2)),
    "isolate": Kind(1, (0.2, 8.0), blamed=_if_long(1)),
    "refuse": Kind(2, (0.5, 4.0), blamed=_if_long(2)),
    "slow": Kind(1, (1.0, 8.0)),
    "no_files": Kind(1, (0.5, 8.0), blamed=_if_long(1)),
    "bad_route": Kind(1, blamed=lambda fault: fault.hosts[:1]),
    "stall": Kind(0, (0.5, 8.0)),
    "cut_off": Kind(1, (0.5, 60.0)),
    "lose_answers": Kind(0, (1.0, 5.0)),
    "full": Kind(0, (1.0, 5.0)),
    "amnesia": Kind(),
    "go_back": Kind(0, (0.1, 4.0)),
    "apart": Kind(),
    "hang_folder": Kind(1, (0.5, 8.0), blamed=_if_forgotten),
    "freeze_agent": Kind(1, (0.2, 6.0), blamed=_if_long(1)),
    "stale": Kind(1, (0.5, 6.0)),
    "late_claim": Kind(1, (0.5, 25.0)),
    "folder_errors": Kind(1, (0.5, 5.0)),
    "torn": Kind(),
    "freeze_claim": Kind(1, (0.2, 6.0), blamed=_if_long(1)),
    "freeze_begin": Kind(1, (0.2, 6.0), blamed=_if_long(1)),
}
