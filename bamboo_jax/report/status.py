"""Reads the status of a cluster and renders it for `bamboo status`."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.recovery import durations, layout as layout_lib, slowness, survival as survival_lib

_FOR_NEWCOMERS = ("members", "restart")  # Shown beside the layout.


@dataclasses.dataclass(frozen=True)
class StoredRun:
  """State of a run in its records.

  `registered` agents have shown their address; those that are not members are
  joining, or have just died. `status` is as reported; may be empty. `config` is
  that of the run.
  """

  name: str
  num_steps: int
  view: views.View
  registered: Sequence[views.Member]
  status: Mapping[str, Any]
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read(records: records_lib.Records, name: str) -> StoredRun:
  """Returns the newest run of a folder.

  Raises `OSError` if the records cannot be read, `ValueError` without a run.
  """
  view = judge.newest_view(records)
  config = (records.find(f"run/{view.run}") or {}).get("config", {}).get("config")
  if config is None:
    raise ValueError(f"There is no run of agents in {records.where}.")
  there = [mark["member"] for mark in records.marks("nodes").values()]
  return StoredRun(
      name=name,
      num_steps=config["num_steps"],
      view=view,
      registered=[json_lib.from_plain(views.Member, member) for member in there],
      status=records.find(f"status/{view.run}") or {},
      config=config,
  )


def render(run: StoredRun, *, now_secs: float) -> str:
  """Returns lines for people; `now_secs` is in seconds since 1970."""
  view, status = run.view, run.status
  head: dict[str, Any] = {"run": run.name}
  if config := run.config.get("name"):
    head["config"] = config
  head["view"] = view.number
  if "steps" in status:
    head |= {"step": status["steps"], "num_steps": run.num_steps}
    head["told_secs_ago"] = f"{max(0.0, now_secs - status['at_secs']):.1f}"
  layout = parse_layout(status.get("layout", {}))
  names: dict[base.NodeId | None, str] = {None: "none"}
  for r in status.get("recoveries", ()):
    names |= {n: f"{name} (gone)" for n, name in zip(r["nodes"], r["names"], strict=True)}
  names |= {m.number: f"{m.name} ({m.zone})" for m in view.members}
  find = lambda number: names.get(number, f"node {number} (gone)")
  join = lambda numbers: ", ".join(map(find, sorted(numbers))) or "none"
  members = view.numbers
  lines = [progress_lib.render_line(head), f"reason: {view.reason}"]
  for number, pipeline in enumerate(layout.pipelines):
    lines += [
        f"stage {number}/{stage}: {find(owner)}, shadow "
        f"{find(pipeline.roles.shadows.get(stage))}"
        for stage, owner in base.by_stage(pipeline.roles.owners)
    ]
  if not run.registered:
    lines.insert(0, "No agent of this run is alive.")
  others = [m for m in run.registered if m.number not in members]
  lines += [
      f"spares: {join(members - layout.nodes)}",
      f"leaving: {join(view.leaving)}",
      "joining, or just gone: " + (", ".join(f"{m.name} ({m.zone})" for m in others) or "none"),
      describe_survival(layout, view),
  ]
  recoveries = durations.report(status.get("recoveries", ()), {})
  lines += map(durations.describe, recoveries)
  lines += [
      f"slow: {slowness.describe(slow)} in step {slow['step']}" for slow in status.get("slow", ())
  ]
  if uploaded := status.get("uploaded"):
    lines.append(progress_lib.render_event({"event": "uploaded", **uploaded}) or "")
  return "\n".join(lines)


def parse_layout(told: Mapping[str, Any]) -> layout_lib.Layout:
  """Returns the layout in a status; empty before the first."""
  facts = {k: v for k, v in told.items() if k not in _FOR_NEWCOMERS}
  return json_lib.from_plain(layout_lib.Layout, facts)


def describe_survival(layout: layout_lib.Layout, view: views.View) -> str:
  """Returns the failures that the layout would survive now, as sentences."""
  if not layout.pipelines or not layout.nodes <= view.numbers:
    return "What may fail is not known while training stands still."
  zones = {m.number: m.zone for m in view.members}
  return survival_lib.find_survival(layout.pipelines, zones).render()
