"""What is known of a run, as one JSON value: for the page and `--json`.

Pure. Numbers that are not known, or not finite, are None.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import math
from typing import Any, NamedTuple

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib, ledger as ledger_lib, prices as prices_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views
from bamboo_jax.metrics import chrome_trace, rows as rows_lib, slot as slot_lib
from bamboo_jax.recovery import (
    decide as decide_lib,
    ladder as ladder_lib,
    layout as layout_lib,
    moves,
)
from bamboo_jax.report import status as status_lib
from bamboo_jax.report.live import history as history_lib


@dataclasses.dataclass
class Known:
  """What is known of a run so far.

  Attributes:
    history: Points and events from its log.
    run: State in the store; None for a run that is over.
    price: Price of a node; None if the config names no instance.
    market: One of `prices.MARKETS`.
    rows: Result of `find_rows`.
    actions: Faults that buttons may cause.
    kills: Time of death of nodes that this process has killed, by number.
    met: Numbers of all members of views that were seen.
  """

  name: str
  history: history_lib.History
  run: status_lib.StoredRun | None = None
  price: prices_lib.Price | None = None
  market: str = "spot"
  rows: Mapping[str, Any] | None = None
  actions: Sequence[str] = ()
  kills: Mapping[base.NodeId, float] = dataclasses.field(default_factory=dict)
  met: frozenset[base.NodeId] = frozenset()


def find(known: Known) -> dict[str, Any]:
  """Returns the value of a page: head, metrics, nodes, recoveries, rows, ..."""
  history, nodes = known.history, _find_nodes(known)
  status = known.run.status if known.run else {}
  recoveries = {
      r["view"]: history_lib.find_recovery(r, known.kills) for r in status.get("recoveries", ())
  } | history.recoveries
  return {
      "head": _find_head(known),
      "metrics": _find_metrics(known, nodes),
      "nodes": nodes,
      "survival": _find_survival(known.run),
      "recoveries": [r for _, r in sorted(recoveries.items())],
      "events": list(history.events),
      "curve": list(history.points),
      "time": _find_time(history.totals),
      "rows": known.rows,
      "actions": list(known.actions),
  }


def find_rows(
    planned: rows_lib.StepRows | None,
    members: Mapping[str, Sequence[rows_lib.StepRows]],
    history: history_lib.History,
) -> dict[str, Any] | None:
  """Returns the plan of a step, and the last step that was measured.

  None if there is neither. `members` has the last steps of each, by name.
  """
  steps = {r.step for rows in members.values() for r in rows if r.slots}
  if planned is None and not steps:
    return None
  last = max(steps, default=0)
  here = [r for rows in members.values() for r in rows if r.step == last]
  begin = min((r.at_secs for r in here), default=0.0)
  measured = [slot for r in here for slot in r.shifted(1e3 * (r.at_secs - begin))]
  return {
      "step": last or None,
      "names": {slot[0]: name for name, rows in members.items() for slot in rows[-1].slots[:1]},
      "planned": planned.slots if planned else [],
      "measured": measured,
      "deaths": [
          [name, 1e3 * (r["view_at_secs"] - here[0].start_secs)]
          for r in history.recoveries.values()
          if r["step"] == last and here
          for name in r["names"]
      ],
  }


def traced_rows(last: chrome_trace.TracedStep) -> dict[str, Any]:
  """Returns the last step in `trace.json`, in the form of `find_rows`."""
  measured = rows_lib.pack(last.measured)
  return {
      "step": last.step,
      "names": {},
      "planned": rows_lib.pack(last.planned),
      "measured": [row for row in measured if row[2] != slot_lib.DEATH],
      "deaths": [[row[0], row[3]] for row in measured if row[2] == slot_lib.DEATH],
  }


def _find_head(known: Known) -> dict[str, Any]:
  run, last = known.run, known.history.last
  if run is None:
    return {"run": known.name, "is_over": True, "step": last.get("step")}
  return {
      "run": known.name,
      "is_over": False,
      "view": run.view.number,
      "reason": run.view.text,
      "step": last.get("step", run.status.get("steps")),
      "num_steps": run.num_steps,
      "at_secs": run.status.get("at_secs"),
  }


def _find_metrics(known: Known, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns metrics of the last step, and dollars at the present rate."""
  told = known.run.status.get("metrics", {}) if known.run else {}
  last = known.history.last or told
  found = {
      name: value
      for name, value in last.items()
      if isinstance(value, int | float) and math.isfinite(value) and name not in ("step", "view")
  }
  totals, price = known.history.totals, known.price
  if price is not None:
    per_hour = price.usd_per_hour(known.market)
    live = sum(node["role"] not in ("joining", "gone") for node in nodes)
    found["usd_per_hour"] = per_hour * live
    if known.run is None and totals.secs:
      found["usd_per_hour"] = per_hour * totals.node_secs / totals.secs
    found["usd"] = per_hour * totals.node_secs / 3600
    if known.history.num_tokens:
      found["usd_per_million_tokens"] = 1e6 * found["usd"] / known.history.num_tokens
  return found


def _find_nodes(known: Known) -> list[dict[str, Any]]:
  """Returns the nodes: place, shadow, and the rung if each alone dies.

  A node is "gone" that was a member and whose lease has not yet ended.
  """
  run = known.run
  if run is None:
    return _find_owners(known)
  layout, rungs, _ = _find_standing(run)
  places: dict[int, list[str]] = {}
  shadows: dict[int, list[str]] = {}
  for number, pipeline in enumerate(layout.pipelines):
    for stage, owner in enumerate(pipeline.roles.owners):
      if stage not in pipeline.vacant:
        places.setdefault(owner, []).append(f"{number}/{stage}")
    for stage, shadow in pipeline.roles.shadows.items():
      shadows.setdefault(shadow, []).append(f"{number}/{stage}")
  registered = {m.number: m for m in run.registered}
  members = {m.number: m for m in run.view.members}
  told = [*run.status.get("recoveries", ())]
  gone = known.met.union(*(r["nodes"] for r in told))
  found = []
  for number, member in sorted((registered | members).items()):
    role = "owner" if number in places else "spare"
    if number not in members:
      role = "gone" if number in gone else "joining"
    elif number in run.view.leaving:
      role = "leaving"
    found.append(
        {
            "number": number,
            "name": member.name,
            "zone": member.zone,
            "role": role,
            "places": places.get(number, []),
            "shadows": shadows.get(number, []),
            "if_lost": rungs.get(frozenset({number})),
        }
    )
  return found


def _find_owners(known: Known) -> list[dict[str, Any]]:
  """Returns the nodes of a run that is over, each with all its places."""
  names = known.history.names
  places: dict[int, list[str]] = {}
  for pipeline, owners in enumerate(known.history.owners):
    for stage, node in enumerate(owners):
      places.setdefault(node, []).append(f"{pipeline}/{stage}")
  return [
      {
          "number": node,
          "name": names.get(str(node), f"node {node}"),
          "zone": None,
          "role": "owner",
          "places": owned,
          "shadows": [],
          "if_lost": None,
      }
      for node, owned in places.items()
  ]


class _Standing(NamedTuple):
  """Layout, rungs taken if one of some sets of nodes died now, a sentence."""

  layout: layout_lib.Layout
  rungs: Mapping[frozenset[base.NodeId], str]
  survival: str


def _find_standing(run: status_lib.StoredRun) -> _Standing:
  told = [run.status.get("layout", {}), run.status.get("ladder", {})]
  return _judge(json.dumps(told), run.view)


@functools.lru_cache(maxsize=2)  # They change rarely, and are asked for often.
def _judge(told: str, view: views.View) -> _Standing:
  facts, switched_on = json.loads(told)
  layout = status_lib.parse_layout(facts)
  text = status_lib.describe_survival(layout, view)
  if not layout.pipelines or not layout.nodes <= view.numbers:
    return _Standing(layout, {}, text)
  ladder = json_lib.from_plain(ladder_lib.Ladder, switched_on)
  spares = tuple(sorted(view.numbers - layout.nodes))
  state = ladder_lib.State(layout.pipelines, spares)
  rungs = {}
  for lost in {*_zones(view).values(), *(frozenset({n}) for n in view.numbers)}:
    change = ladder_lib.Change(lost=lost)
    rung = decide_lib.decide(state, change, ladder=ladder).rung
    if rung in ("checkpoint", "stop") and ladder.reconfigure:
      # Without its planner, which needs costs, `decide` makes no new pipelines.
      if not moves.lost_layers(state.pipelines, {*state.nodes} - lost):
        rung = "reconfigure"
    rungs[lost] = rung
  return _Standing(layout, rungs, text)


def _zones(view: views.View) -> dict[str, frozenset[base.NodeId]]:
  zones = sorted({m.zone for m in view.members})
  of = lambda zone: (m.number for m in view.members if m.zone == zone)
  return {zone: frozenset(of(zone)) for zone in zones}


def _find_survival(run: status_lib.StoredRun | None) -> dict[str, Any] | None:
  """Returns the rung for each zone, and a sentence; None if not known."""
  if run is None:
    return None
  standing = _find_standing(run)
  return {
      "text": standing.survival,
      "zones": {zone: standing.rungs.get(nodes) for zone, nodes in _zones(run.view).items()},
  }


def _find_time(totals: ledger_lib.Totals) -> dict[str, Any]:
  """Returns node time by kind, goodput, and badput by kind."""
  node_time = account_lib.NodeTime.of(totals.parts)
  return {
      "node_secs": totals.node_secs,
      "secs": totals.secs,
      "parts": dict(zip(account_lib.KINDS, totals.parts, strict=True)),
      "goodput_pct": 100 * node_time.goodput if node_time.total else None,
      "badput_secs": {name: getattr(node_time, kind) for kind, name in account_lib.BADPUT.items()},
  }
