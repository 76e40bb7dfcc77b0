"""What is known of a run, as one JSON value: for the page and `--json`.

Pure. Numbers that are not known, or not finite, are None.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import json
import math
import types
from typing import Any, NamedTuple

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib, prices as prices_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views
from bamboo_jax.metrics import jsonl, rows as rows_lib
from bamboo_jax.recovery import (
    decide as decide_lib,
    durations,
    layout as layout_lib,
    moves,
    survival as survival_lib,
)
from bamboo_jax.report import events
from bamboo_jax.report.live import words

_MOST = 1000  # Points; with more, every second one is dropped.
_MOST_EVENTS = 200  # The last ones.
_MOST_GONE = 6  # Nodes without a place in the grid: the last ones.
_ROUTINE = ("evaluating", "saving")  # Pauses that are no events.
_FOR_NEWCOMERS = ("members", "restart")  # In a status beside the layout.
Value = dict[str, Any]  # JSON.
EMPTY: Mapping[base.NodeId, Any] = types.MappingProxyType({})


def find_recovery(line: jsonl.Line, kills: Mapping[base.NodeId, float]) -> Value:
  """Returns durations and a sentence of a `durations.RecoveryTimes`.

  `kills` is as in `durations.report`.
  """
  (found,) = durations.report([line], kills)
  return found | {"view_at_secs": line["view_at_secs"], "text": durations.describe(found)}


class History:
  """Adds up the lines of a log.

  Args:
    kills: Time of death of nodes that this process has killed, by number.

  Attributes:
    kills: As given.
    points: Step, seconds of training, loss, tokens (or samples) per second,
      live nodes, seconds of all nodes so far, samples so far.
    evaluations: Step and loss.
    events: Step, kind such as "join", and a sentence.
    life: How often the run was started.
    recoveries: By life and view, as `find_recovery` returns them: views of each
      life may count from 1.
    last: The last line of a step; empty before.
    totals: Totals of the account in the last line that has them.
    num_tokens: Trained on and kept.
    owners: Number of the owner of each stage, by pipeline, at the end.
    names: Of the nodes, by number, at the end.
    places: The last places of each node that ever had some, by number.
    pause: Why training pauses since the last step; "" if it does not.
  """

  def __init__(self, kills: Mapping[base.NodeId, float] = EMPTY) -> None:
    self.kills = kills
    self._boot_secs = 0.0  # Of nodes that are charged with the next step.
    self.points: list[tuple[Any, ...]] = []
    self.evaluations: list[list[Any]] = []
    self.events: list[Value] = []
    self.life = 0
    self.recoveries: dict[tuple[int, int], Value] = {}
    self.last: jsonl.Line = {}
    self.totals = account_lib.Account()
    self.num_tokens = 0.0
    self.owners: list[list[base.NodeId]] = []
    self.names: Mapping[str, str] = {}
    self.places: dict[base.NodeId, list[str]] = {}
    self.pause = ""
    self._stride = 1

  def add(self, lines: Iterable[jsonl.Line]) -> None:
    """Adds further lines; raises `ValueError` for a bad account."""
    for line in lines:
      if "event" in line:
        self._add_event(line)
      else:
        self._add_step(line)

  def _add_step(self, line: jsonl.Line) -> None:
    before = self.totals
    self.totals = account_lib.read(line) or before
    secs = self.totals.secs - before.secs
    node_secs = self.totals.node_secs - before.node_secs - self._boot_secs
    self._boot_secs = 0.0
    self.last, self.pause = line, ""
    if rate := line.get("tokens_per_sec"):
      self.num_tokens += rate * line.get("step_ms", 0.0) / 1e3
    step = line["step"]
    if step % self._stride == 0 or len(self.points) < 2:
      self.points.append(
          (
              step,
              round(self.totals.secs, 3),
              line.get("loss"),  # None if it is not finite.
              line.get("tokens_per_sec", line.get("samples_per_sec")),
              round(node_secs / secs) if secs > 0 else None,
              round(self.totals.node_secs, 3),
              self.totals.num_samples,
          )
      )
    if len(self.points) > _MOST:
      self._stride *= 2
      self.points = [p for p in self.points if p[0] % self._stride == 0]

  def _add_event(self, line: jsonl.Line) -> None:
    self.totals = account_lib.read(line) or self.totals  # At the end: saves, and all since.
    match line["event"]:
      case jsonl.START:
        self.life += 1
      case "recovery":
        found = find_recovery(line, self.kills) | {"train_secs": self.totals.secs}
        self.recoveries[self.life, line["view"]] = found
      case "layout":
        self.owners = line["owners"]
        self.places |= find_places(self.owners)
        self.names = line.get("names", {})
      case "join":
        self._boot_secs += sum(line["boot_secs"].values())
      case "pause":
        self.pause = line["reason"]
      case "eval":
        self.pause = ""
        self.evaluations.append([line["step"], line.get("loss")])
    kind, step, text = line["event"], line["step"], events.describe(line)
    is_routine = kind == "pause" and line["reason"].startswith(_ROUTINE)
    if text is None or kind == "recovery" or is_routine:
      return  # A recovery has a part of the page of its own.
    if self.events and (self.events[-1]["step"], self.events[-1]["text"]) == (step, text):
      return  # A pause has the same words.
    self.events.append({"step": step, "kind": kind, "text": text})
    del self.events[:-_MOST_EVENTS]


def find_places(owners: Iterable[Iterable[base.NodeId]]) -> dict[base.NodeId, list[str]]:
  """Returns the stages of each node, as `pipeline/stage`, from the owner of each stage."""
  found: dict[base.NodeId, list[str]] = {}
  for pipeline, row in enumerate(owners):
    for stage, node in enumerate(row):
      found.setdefault(node, []).append(f"{pipeline}/{stage}")
  return found


@dataclasses.dataclass(frozen=True)
class StoredRun:
  """State of a run in its records.

  `registered` agents have shown their address; those that are not members are
  joining, or have just died. `status` is as reported; may be empty. `config` is
  that of the run.
  """

  view: views.View
  registered: Sequence[views.Member]
  status: Value
  config: Value


@dataclasses.dataclass
class Known:
  """What is known of a run so far.

  Attributes:
    history: Points and events from its log.
    run: State in the store; None for a run that is over.
    price: Price of a node; None if the config names no instance.
    market: One of `prices.MARKETS`.
    rows: The last step that was measured.
    actions: Faults that buttons may cause.
    met: All members of views that were seen, by number.
    config: Of the run; empty if not known.
    summary: Of a run that is over; empty if there is none.
    now_secs: Seconds since 1970.
  """

  name: str
  history: History
  run: StoredRun | None = None
  price: prices_lib.Price | None = None
  market: str = "spot"
  rows: rows_lib.Step | None = None
  actions: Sequence[str] = ()
  met: dict[base.NodeId, views.Member] = dataclasses.field(default_factory=dict)
  config: Value = dataclasses.field(default_factory=dict)
  summary: Value = dataclasses.field(default_factory=dict)
  now_secs: float = 0.0


def find(known: Known) -> Value:
  """Returns the value of a page: head, metrics, nodes, recoveries, rows, ..."""
  history = known.history
  status = known.run.status if known.run else {}
  told = {
      (history.life, line["view"]): find_recovery(line, history.kills)
      for line in status.get("recoveries", ())
  } | history.recoveries
  recoveries = [r for _, r in sorted(told.items())]
  # Events in the records that the log lacks: it may be a copy.
  late = [{"event": "slow", **slow} for slow in status.get("slow", ())]
  if uploaded := status.get("uploaded"):
    late.append({"event": "uploaded", "step": uploaded["saved"], **uploaded})
  texts = {event["text"] for event in history.events}
  late = [{"step": l["step"], "kind": l["event"], "text": events.describe(l)} for l in late]
  standing = None
  if known.run:
    view = known.run.view
    # The first layout of a life is told before its nodes have met: none of them is dead.
    has_met = view.members or view.number > view.run
    told = json.dumps([status.get("layout", {}) if has_met else {}, status.get("ladder", {})])
    standing = _judge(told, view)
  nodes = _find_nodes(known, recoveries, standing)
  totals, price, secs = history.totals, known.price, history.totals.secs
  usd = 0.0 if price is None else price.usd_per_hour(known.market) / 3600
  found: Value = {
      "head": _find_head(known, recoveries, standing),
      "metrics": _find_metrics(known, nodes),
      "nodes": nodes,
      # In the order in which they came: each has a colour.
      "zones": list(dict.fromkeys(member.zone for member in known.met.values())),
      "survival": standing and {"text": standing.survival, "zones": standing.zones},
      "recoveries": recoveries,
      "events": sorted(
          [*history.events, *(event for event in late if event["text"] not in texts)],
          key=lambda event: event["step"],
      ),
      "curve": [[*p[:5], usd * p[5] if usd else None, p[6]] for p in history.points],
      "time": find_time(totals),
      "evaluations": list(history.evaluations),
      "rows": known.rows and known.rows._asdict(),
      "actions": list(known.actions),
  }
  if known.run:
    return found
  head = found["head"]
  charged = figures_of(totals.charge(price, market=known.market)) if secs else {}
  figures = charged | {  # The column of a run in a report.
      "state": head["state"],
      "model": words.describe_model(known.config),
      "steps": head["step"],
      "loss": found["metrics"].get("loss"),
      "tokens_per_sec": history.num_tokens / secs if history.num_tokens else None,
      "layout": words.describe_owners(history.owners),
      "recoveries": words.count(recovery["rung"] for recovery in recoveries),
      "state_sha256": head["state_sha256"] and head["state_sha256"][:12],
  }
  return found | {"figures": figures}


def empty(name: str, state: str) -> Value:
  """Returns the value of a run of which nothing else is known."""
  value = find(Known(name, History()))
  return value | {"head": value["head"] | {"state": state, "rate": "samples"}}


def figures_of(account: account_lib.Account) -> Value:
  """Returns the figures of an account that a report shows."""
  price = account.price and account.price.render(account.market)
  return account.as_dict() | {"hours": account.secs / 3600, "price": price}


def _find_head(known: Known, recoveries: Sequence[Value], standing: "_Standing | None") -> Value:
  """Returns the header of the page: the run, its progress, and its last deaths."""
  run, history = known.run, known.history
  status = run.status if run else {}
  # The log may be a copy that lags; after a rollback the record may be ahead for a step.
  step = max(filter(None, (history.last.get("step"), status.get("steps"))), default=None)
  num_steps = (run or known).config.get("num_steps")
  lost: list[str] = []  # Dead nodes that still have stages in the layout.
  if run is not None and standing is not None:
    numbers = sorted(standing.layout.nodes - run.view.numbers)
    lost = [
        known.met[n].name if n in known.met else history.names.get(str(n), f"node {n}")
        for n in numbers
    ]
  state = words.find_state(
      step=step,
      num_steps=num_steps,
      is_live=run is not None,
      has_agents=run is None or bool(run.registered) or not run.view.number,
      lost=lost,
      pause=history.pause,
  )
  secs = history.totals.secs
  if run is not None and secs and state not in words.ENDS:
    secs += max(0.0, known.now_secs - status.get("at_secs", known.now_secs))
  left = None
  if state != words.NO_AGENT:
    left = words.find_left_secs(history.points, step or 0, num_steps)
  news = [
      words.describe_news(r)
      for r in reversed(recoveries)
      if run is not None and secs - r.get("train_secs", -math.inf) < words.NEWS_SECS
  ]
  if lost:
    news.insert(0, f"{survival_lib.join(lost, 'and')} died")
  return {
      "run": known.name,
      "title": words.describe_config(known.config),
      "is_over": run is None,
      "state": state,
      "step": step,
      "num_steps": num_steps,
      "elapsed": words.describe_secs(secs) if secs else None,
      "left": words.describe_secs(left) if left else None,
      "news": news[:3],
      "rate": "samples" if "samples_per_sec" in history.last else "tokens",
      "view": run.view.number if run else None,
      "reason": run.view.text if run else "",
      "at_secs": status.get("at_secs", known.now_secs),
      "state_sha256": known.summary.get("state_sha256"),
  }


def _find_metrics(known: Known, nodes: Sequence[Value]) -> Value:
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


def _find_nodes(
    known: Known, recoveries: Sequence[Value], standing: "_Standing | None"
) -> list[Value]:
  """Returns the cards of all nodes; of a run that is over, those at its end."""
  run, history = known.run, known.history
  if run is None or standing is None:
    name = lambda node: history.names.get(str(node), f"node {node}")
    owners = find_places(history.owners).items()
    living = [make_card(name(node), None, "owner", owned) for node, owned in owners]
    return arrange(living, recoveries, last_places=history.places)
  view = run.view
  places: dict[int, list[str]] = {}
  shadows: dict[int, list[str]] = {}
  for number, pipeline in enumerate(standing.layout.pipelines):
    for stage, owner in enumerate(pipeline.roles.owners):
      if stage not in pipeline.vacant:
        places.setdefault(owner, []).append(f"{number}/{stage}")
    for stage, shadow in pipeline.roles.shadows.items():
      shadows.setdefault(shadow, []).append(f"{number}/{stage}")
  # Those that died before this was started were never met.
  dead = standing.layout.nodes.union(*(recovery["nodes"] for recovery in recoveries))
  joining = [m for m in run.registered if m.number not in known.met and m.number not in dead]
  living = []
  for member in sorted({*joining, *view.members}):
    number = member.number
    role = "owner" if number in places else "spare"
    if number not in view.numbers:
      role = "joining"
    elif number in view.leaving:
      role = "leaving"
    stages = (places.get(number, []), shadows.get(number, []))
    living.append(
        make_card(member.name, member.zone, role, *stages, if_lost=standing.nodes.get(number))
    )
  gone = sorted(known.met.keys() - view.numbers)
  return arrange(living, recoveries, last_places=history.places, met=known.met, gone=gone)


def make_card(
    name: str,
    zone: str | None,
    role: str,
    places: Sequence[str] = (),
    shadows: Sequence[str] = (),
    *,
    if_lost: str | None = None,
    text: str = "",
) -> Value:
  """Returns a node of the page, to which `arrange` adds row and column.

  Args:
    role: "owner", "spare", "leaving", "joining" or "gone".
    places: Stages that it owns, as `pipeline/stage`.
    shadows: Stages of which it has a replica.
    if_lost: Rung that would be taken if it died; None if not known.
    text: For people; "": on that rung.
  """
  card = dict(name=name, zone=zone, role=role, places=[*places], shadows=[*shadows])
  if not text and if_lost:
    text = f"if it dies: {words.IF_LOST[if_lost]}"
  return card | {"if_lost": if_lost, "text": text}


def arrange(
    living: Sequence[Value],
    recoveries: Iterable[Value],
    *,
    last_places: Mapping[base.NodeId, Sequence[str]],
    met: Mapping[base.NodeId, views.Member] = EMPTY,
    gone: Iterable[base.NodeId] = (),
) -> list[Value]:
  """Returns living and dead nodes in the order of the grid, each with its row and column.

  A row is "pipeline 0", or "spares", "joining", "gone"; the column is the stage, None outside
  of a pipeline. A node stands at its first place; a dead one keeps its place until another node
  stands there. Those that have come again under their old name are not dead.

  Args:
    recoveries: In order.
    last_places: The places of nodes when they last had some, by number.
    met: All members that were ever seen.
    gone: Members that are lost, if only lately.
  """
  dead: dict[str, Value] = {}
  zones = {member.name: member.zone for member in met.values()}

  def bury(name: str, places: Sequence[str], text: str) -> None:
    dead.pop(name, None)  # The last comes first.
    dead[name] = make_card(name, zones.get(name), "gone", places, text=text)

  for number in gone:
    bury(met[number].name, last_places.get(number, []), "gone")
  for recovery in recoveries:
    for number, name in zip(recovery["nodes"], recovery["names"], strict=True):
      places = last_places.get(number, recovery["victims"] if len(recovery["nodes"]) == 1 else [])
      text = f"died in step {recovery['step']}; {durations.describe_answer(recovery)}"
      bury(name, places, text)
  for card in living:
    dead.pop(card["name"], None)
  found: list[tuple[Any, Value]] = []
  taken: set[str] = set()
  num_gone = 0
  for card in [*living, *reversed(dead.values())]:
    place = next((p for p in card["places"] if p not in taken), None)
    role, column = card["role"], None
    if role == "gone" and place is None:
      num_gone += 1
      if num_gone > _MOST_GONE:
        continue
    row = role if role in ("joining", "gone") else "spares"
    key = (1, ("spares", "joining", "gone").index(row))
    if place is not None:
      taken.add(place)
      pipeline, column = map(int, place.split("/"))
      row, key = f"pipeline {pipeline}", (0, pipeline, column)
    found.append((key, card | {"row": row, "column": column}))
  return [card for _, card in sorted(found, key=lambda entry: entry[0])]


class _Standing(NamedTuple):
  """Layout, a sentence, and the rung taken if a node or a zone died now; None if not known."""

  layout: layout_lib.Layout
  survival: str
  nodes: Mapping[base.NodeId, str | None]
  zones: Mapping[str, str | None]


@functools.lru_cache(maxsize=2)  # They change rarely, and are asked for often.
def _judge(told: str, view: views.View) -> _Standing:
  facts, switched_on = json.loads(told)
  facts = {name: fact for name, fact in facts.items() if name not in _FOR_NEWCOMERS}
  layout: layout_lib.Layout = json_lib.from_plain(layout_lib.Layout, facts)
  ladder = json_lib.from_plain(decide_lib.Ladder, switched_on)
  whole = dataclasses.replace(layout, spares=tuple(sorted(view.numbers - layout.nodes)))
  zone_of = {m.number: m.zone for m in view.members}
  is_known = bool(layout.pipelines) and layout.nodes <= view.numbers
  text = "What may fail is not known while training stands still."
  if is_known:
    text = survival_lib.find_survival(layout.pipelines, zone_of).render()

  def find_rung(*lost: base.NodeId) -> str | None:
    """Returns the rung that is taken if some nodes die."""
    if not is_known:
      return None
    change = decide_lib.Change(lost=frozenset(lost))
    rung = decide_lib.decide(whole, change, ladder=ladder).rung
    if rung in ("checkpoint", "stop") and ladder.options.reconfigure:
      # Without its planner, which needs costs, `decide` makes no new pipelines.
      if not moves.lost_layers(whole.pipelines, {*whole.live}.difference(lost)):
        return "reconfigure"
    return rung

  return _Standing(
      layout,
      text,
      {node: find_rung(node) for node in view.numbers},
      {z: find_rung(*(n for n in zone_of if zone_of[n] == z)) for z in sorted({*zone_of.values()})},
  )


def find_time(account: account_lib.Account) -> Value:
  """Returns node time by kind, goodput, and badput by kind."""
  node_time = account.node_time
  return {
      "node_secs": account.node_secs,
      "secs": account.secs,
      "parts": node_time._asdict(),
      "goodput_pct": 100 * node_time.goodput if node_time.total else None,
      "badput_secs": {name: getattr(node_time, kind) for kind, name in account_lib.BADPUT.items()},
  }
