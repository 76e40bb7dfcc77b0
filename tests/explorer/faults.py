"""Faults of a plan, carried out on a simulated cluster."""

import collections
from collections.abc import Iterable
import functools
import itertools
from typing import Any

from tests.explorer import machine as machine_lib, network as network_lib, plans

_SLOW_SECS = 0.2
_OF_LINKS = (
    *("cut", "cut_one_way", "cut_all", "isolate"),
    *("refuse", "refuse_all", "slow", "bad_route"),
)
_AWAY_SECS = 1.4


def begin(history: Any, fault: plans.SimFault) -> None:
  """Begins a fault of the plan of a `history.ClusterHistory`."""
  world, network, hosts = history.world, history.world.network, fault.hosts
  judge = world.shared.judge
  history.check_views()
  world.log(f"{fault}")
  machines = [history.machines[h] for h in hosts if h in history.machines]
  is_early = fault.kind in ("join", "bad_route", "apart")
  if len(machines) < len(hosts) and not is_early:
    return  # Who has not come yet is spared.
  later = functools.partial(world.clock.at, fault.secs)

  def hold(faults: collections.Counter[str], what: Iterable[str]) -> None:
    faults.update(what)
    later(network_lib.lift, faults, what)

  match fault.kind:
    case "join":
      history.add(*hosts)
    case "kill" | "vanish" | "hang" | "stop_worker":
      getattr(machines[0], fault.kind)()
    case "worker" | "all_workers":
      for machine in machines or history.machines.values():
        if any(m.agent.is_done for m in history.machines.values()):
          history.late.add(machine.host)  # It will not be done.
        machine.kill_worker()
    case "notice":
      machines[0].give_notice()
    case "freeze" | "freeze_agent":
      machines[0].freeze(is_all=fault.kind == "freeze")
      later(machines[0].thaw)
    case "busy":
      _be_busy(history, machines[0], world.clock.now + fault.secs)
    case "reset":
      network.reset(*hosts)
    case kind if kind in _OF_LINKS:
      _break(history, fault)
    case "no_files":
      hold(network.crowded, hosts)
    case "apart":
      _break(history, fault)
    case "stall":
      for host in history.all_hosts():
        judge.hang(host, fault.secs)
    case "late" | "late_effect":
      judge.be_late(hosts[0], fault.secs, gives_up=fault.kind == "late_effect")
    case "hang_judge" | "stale" | "slow_judge" | "judge_errors":
      act = {
          "hang_judge": judge.hang,
          "stale": judge.be_stale,
          "slow_judge": judge.be_slow,
          "judge_errors": judge.fail,
      }[fault.kind]
      for host in hosts:
        act(host, fault.secs)
    case "torn":
      judge.num_torn += 1
      later(judge.mend)
    case "freeze_make":
      machines[0].freeze_after("make", fault.secs)
    case "cut_off":
      hold(judge.cut_off, hosts)
    case "lose_answers" | "full":
      name = "is_full" if fault.kind == "full" else "loses_answers"
      setattr(judge, name, True)
      later(setattr, judge, name, False)


def _be_busy(history: Any, machine: machine_lib.SimulatedMachine, end_secs: float) -> None:
  """A crowded machine: away for most heartbeats, but not for long."""
  clock = history.world.clock
  if clock.now < end_secs:
    machine.freeze()
    clock.at(_AWAY_SECS, machine.thaw)
    clock.at(2 * _AWAY_SECS, _be_busy, history, machine, end_secs)


def _break(history: Any, fault: plans.SimFault) -> None:
  network, hosts = history.world.network, fault.hosts
  pairs = {hosts}
  rest = history.all_hosts()
  if fault.kind in ("cut_all", "refuse_all"):
    pairs = {*itertools.permutations(rest, 2)}
  if fault.kind in ("isolate", "slow", "apart"):
    pairs = {(one, h) for one in hosts for h in rest - {*hosts}}
  if fault.kind != "cut_one_way":
    pairs |= {pair[::-1] for pair in pairs}
  match fault.kind:
    case "slow":
      network.slow |= dict.fromkeys(sorted(pairs), _SLOW_SECS)
      mend = lambda: [network.slow.pop(p, None) for p in sorted(pairs)]
    case "refuse" | "refuse_all" | "bad_route":
      network.refused.update(pairs)
      for pair in sorted(pairs) if fault.kind != "bad_route" else ():
        network.reset(*pair)
      mend = lambda: network_lib.lift(network.refused, pairs)
    case _:
      network.cut.update(pairs)
      mend = lambda: network.heal(pairs)
  if fault.secs:
    history.world.clock.at(fault.secs, mend)
