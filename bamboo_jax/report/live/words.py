"""What a page says, as text; and the page, to be filled by events, or with a value in it."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import json
import pathlib
from typing import Any

from bamboo_jax.metrics import palette, progress as progress_lib, table as table_lib
from bamboo_jax.recovery import durations, survival

_PAGE = pathlib.Path(__file__).with_name("page.html")
_LAST = 5  # Recoveries, and events, on a terminal.
OVER, NO_AGENT = "over", "not alive: no agent of it is there"
ENDS = (OVER, NO_AGENT)  # States in which nothing more happens.
_OPENING = '<script type="application/json" id="value">'


def render_page(value: Mapping[str, Any] | None = None) -> str:
  """Returns the page; with the value of `contents.make`, it needs no server."""
  text = json.dumps(value, separators=(",", ":"))
  content = text.replace("</", "<\\/")  # It must not end the script.
  page = _PAGE.read_text(encoding="utf-8")
  empty = page.replace("/* palette */", palette.render_css())
  return empty.replace(f"{_OPENING}null<", f"{_OPENING}{content}<")


def render_status(value: Mapping[str, Any], *, now_secs: float) -> str:
  """Returns head, nodes and last events of the page of a live run, for a terminal."""
  head = value["head"]
  shown = {name: head[name] for name in ("run", "view", "step", "num_steps") if head[name]}
  if head["step"]:
    shown["told_secs_ago"] = f"{max(0.0, now_secs - head['at_secs']):.1f}"
  state = [head["state"]]
  state += [f"run time {head['elapsed']}"] * bool(head["elapsed"])
  state += [f"about {head['left']} left"] * bool(head["left"])
  rows = [["node", "zone", "place", "owns", "shadows", ""]]
  for node in value["nodes"]:
    places = (", ".join(node[name]) for name in ("places", "shadows"))
    rows.append([node["name"], node["zone"] or "", node["row"], *places, node["text"]])
  told = [*value["recoveries"][-_LAST:], *value["events"][-_LAST:]]
  return "\n".join(
      [
          progress_lib.render_line(shown),
          *filter(None, [head["title"]]),
          ", ".join(state),
          f"view {head['view']}: {head['reason']}",
          table_lib.align(rows, left=range(len(rows[0]))),
          value["survival"]["text"],
          *(f"step {entry['step']}: {entry['text']}" for entry in told),
      ]
  )


NEWS_SECS = 60.0  # So long a death is told at the top.
# What follows if a node dies, by rung.
IF_LOST = {
    "none": "nothing is lost",
    "shadow": "its shadow takes over",
    "reroute": "another pipeline computes for it",
    "drop": "samples of its pipeline are dropped",
    "reconfigure": "pipelines are made again, from live copies",
    "checkpoint": "back to the last checkpoint",
    "wait": "training waits for a node",
    "stop": "the run ends",
}


def describe_secs(secs: float) -> str:
  """Returns a time in its two largest units, such as "3 min 20 s"."""
  rest, parts = max(0, round(secs)), list[tuple[int, str]]()
  for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
    count, rest = divmod(rest, size)
    if count or parts or name == "s":
      parts.append((count, name))
  return " ".join(f"{count} {name}" for count, name in parts[:2] if count or len(parts) == 1)


def describe_config(config: Mapping[str, Any]) -> str:
  """Returns name, model, data and layout of a run; "" if the config is not known."""
  if not config:
    return ""
  pipeline = config["pipeline"]
  copies, stages = pipeline["num_pipelines"], pipeline["num_stages"]
  layout = f"{copies} pipeline{'s' * (copies > 1)} of {stages} stage{'s' * (stages > 1)}"
  parts = (config.get("name"), f"{describe_model(config)} on {config['data']['name']}", layout)
  return ", ".join(filter(None, parts))


def describe_model(config: Mapping[str, Any]) -> str | None:
  """Returns name and variant of the model of a run; None if not known."""
  model = config.get("model")
  return model and " ".join(filter(None, (model["name"], model.get("options", {}).get("variant"))))


def describe_owners(owners: Sequence[Sequence[Any]]) -> str | None:
  """Returns the sizes of pipelines, such as "2 x 4" or "4 + 3"; None without any."""
  sizes = [len(row) for row in owners]
  if len(set(sizes)) == 1:
    return f"{len(sizes)} x {sizes[0]}"
  return " + ".join(map(str, sizes)) or None


def count(rungs: Iterable[str]) -> str:
  """Returns how often each rung was taken, such as "3 shadow, 1 checkpoint"."""
  found = collections.Counter(rungs).most_common()
  return ", ".join(f"{times} {rung}" for rung, times in found) or "none"


def describe_news(recovery: Mapping[str, Any]) -> str:
  """Returns who died, what followed, and how long training paused."""
  pause = recovery["pause_secs"]
  return durations.describe_death(recovery) + ("" if pause is None else f", {pause:.1f} s")


def find_state(
    *,
    step: int | None,
    num_steps: int | None,
    is_live: bool,
    has_agents: bool,
    lost: Sequence[str],
    pause: str,
) -> str:
  """Returns "training", "starting", "paused: " and why, or one of `ENDS`.

  Args:
    step: The last step; None before the first.
    num_steps: Of the whole run; None if not known.
    is_live: False if only files of the run are read.
    has_agents: Whether an agent of a live run is there.
    lost: Names of nodes that have stages and are dead.
    pause: Why training pauses since the last step; "" if it does not.
  """
  if num_steps is not None and (step or 0) >= num_steps:
    return OVER
  if not is_live:
    return f"its log ends after step {step or 0}"
  if not has_agents:
    return NO_AGENT
  if lost:
    return f"paused: {survival.join(lost, 'and')} died"
  if pause:
    return f"paused: {pause}"
  return "training" if step else "starting"


def find_left_secs(
    points: Sequence[Sequence[Any]], step: int, num_steps: int | None
) -> float | None:
  """Returns the time left, at the rate of the last points; None if not known.

  A point begins with its step and the seconds of training.
  """
  last = points[-20:]
  if num_steps is None or len(last) < 2 or last[-1][0] <= last[0][0]:
    return None
  rate = (last[-1][1] - last[0][1]) / (last[-1][0] - last[0][0])
  return float(max(0, num_steps - step) * rate)
