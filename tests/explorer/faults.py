"""Kinds of faults: whom they hit, for how long, and how a simulated cluster suffers them."""

import asyncio
from collections.abc import Callable
import contextlib
import dataclasses
import itertools
import math

from tests.explorer import cluster as cluster_lib

HUNG_SECS = 2.0  # Who is away for longer may be left out.
FORGOTTEN_SECS = 30.0  # No worker waits for so long for the judge.
_AWAY_SECS = 1.4  # A crowded machine is away for most heartbeats, but not for long.
# What is wrong with the place of the records, for some hosts or for all.
_OF_PLACE = {
    "hang_judge": "hangs",
    "stall": "hangs",
    "slow_judge": "slow",
    "stale": "stale",
    "judge_errors": "fails",
    "lose_answers": "fails",
    "full": "full",
    "cut_off": "cut off",
}
_COMING = ("join", "bad_route", "apart")  # They hit who has not come yet.


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
    **dict.fromkeys(("join", "all_workers", "apart", "torn"), FaultKind()),
    **dict.fromkeys("kill vanish hang worker stop_worker notice".split(), _VICTIM),
    **dict.fromkeys(
        ("freeze", "freeze_agent", "freeze_make"), FaultKind(1, (0.2, 6.0), _if_long(1))
    ),
    "busy": FaultKind(1, (4.0, 8.0)),
    "reset": FaultKind(2),
    **dict.fromkeys(("cut", "cut_one_way"), FaultKind(2, (0.2, 8.0), _if_long(2))),
    **dict.fromkeys(("cut_all", "refuse_all"), FaultKind(0, (0.2, 20.0))),
    "isolate": FaultKind(1, (0.2, 8.0), _if_long(1)),
    "refuse": FaultKind(2, (0.5, 4.0), _if_long(2)),
    "slow": FaultKind(1, (1.0, 8.0)),
    "no_files": FaultKind(1, (0.5, 8.0), _if_long(1)),
    "bad_route": FaultKind(1, blamed=lambda fault: fault.hosts[:1]),
    "stall": FaultKind(0, (0.5, 8.0)),
    "cut_off": FaultKind(1, (0.5, 60.0), _if_forgotten),
    **dict.fromkeys(("lose_answers", "full"), FaultKind(0, (1.0, 5.0))),
    "hang_judge": FaultKind(1, (0.5, 8.0), _if_forgotten),
    "slow_judge": FaultKind(1, (1.0, 8.0)),
    "stale": FaultKind(1, (0.5, 6.0)),
    "late": FaultKind(1, (0.5, 25.0)),
    "late_effect": FaultKind(1, (0.5, 60.0)),
    "judge_errors": FaultKind(1, (0.5, 5.0)),
}


async def carry_out(fault: SimFault, cluster: cluster_lib.Cluster) -> None:
  """Carries out a fault other than a join, once its time has come."""
  await asyncio.sleep(fault.at_secs)
  cluster.log("", f"{fault}")
  machines = [cluster.machines[h] for h in fault.hosts if h in cluster.machines]
  if len(machines) < len(fault.hosts) and fault.kind not in _COMING:
    return  # Who has not come yet is spared.
  place, network = cluster.place, cluster.network
  match fault.kind:
    case "kill" | "vanish" | "hang" | "stop_worker" | "notice":
      getattr(machines[0], fault.kind)()
    case "worker" | "all_workers":
      for machine in machines or cluster.machines.values():
        if any(m.agent.is_done for m in cluster.machines.values()):
          cluster.late.add(machine.host)  # It will not be done.
        machine.kill_worker()
    case "freeze_make":
      machines[0].freeze_secs = fault.secs
    case "busy":
      for _ in range(math.ceil(fault.secs / (2 * _AWAY_SECS))):
        await cluster.hold(machines[0].frozen(), _AWAY_SECS)
        await asyncio.sleep(_AWAY_SECS)
    case "reset":
      network.reset(*fault.hosts)
    case "late" | "late_effect":
      place.late[fault.hosts[0]] = fault.secs, fault.kind == "late_effect"
    case kind if kind in _OF_PLACE:
      for host in fault.hosts or sorted(cluster.hosts):
        place.suffer(_OF_PLACE[kind], host, fault.secs)
    case _:
      await cluster.hold(_find_trouble(fault, cluster), fault.secs or math.inf)


def _find_trouble(
    fault: SimFault, cluster: cluster_lib.Cluster
) -> contextlib.AbstractContextManager[None]:
  """Returns what holds while a fault lasts."""
  network, hosts = cluster.network, fault.hosts
  match fault.kind:
    case "freeze" | "freeze_agent":
      return cluster.machines[hosts[0]].frozen(is_all=fault.kind == "freeze")
    case "torn":
      return cluster.place.tear()
    case "no_files":
      return network.suffer(network.crowded, hosts)
    case "cut_all" | "refuse_all":
      pairs = {*itertools.permutations(cluster.hosts, 2)}
    case "isolate" | "slow" | "apart":
      pairs = {(one, h) for one in hosts for h in cluster.hosts - {*hosts}}
    case _:
      pairs = {hosts}
  if fault.kind != "cut_one_way":
    pairs |= {pair[::-1] for pair in pairs}
  if fault.kind == "slow":
    return network.suffer(network.slow, pairs)
  if fault.kind not in ("refuse", "refuse_all", "bad_route"):
    return network.suffer(network.cut, pairs)
  for pair in sorted(pairs) if fault.kind != "bad_route" else ():
    network.reset(*pair)
  return network.suffer(network.refused, pairs)
