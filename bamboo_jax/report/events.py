"""What happened in a run: a sentence for each event of its journal.

Terminal, page, `bamboo status` and reports say it in these words, beside the step.
"""

from collections.abc import Mapping
from typing import Any

from bamboo_jax.metrics import jsonl, progress as progress_lib
from bamboo_jax.recovery import durations

# Metrics in the log that are shown in lines of steps.
_SHOWN = (
    *("loss", "learning_rate", "tokens_per_sec", "samples_per_sec", "bubble_pct", "step_ms"),
    *("mfu_pct", "goodput_pct", "usd", "view"),
)
_OF_RUN = ("warning", "changed")  # Of no step.


def describe(line: Mapping[str, Any]) -> str | None:
  """Returns the sentence of an event, without its step; None if it only carries facts."""
  match line.get("event"):
    case "recovery":
      return durations.describe(durations.report([line], {})[0])
    case "join":
      names = line.get("names") or [f"node {n}" for n in line["boot_secs"]]
      return f"{', '.join(names)} joined"
    case "pause":
      return str(line["reason"])
    case "changed":
      return str(line["text"])
    case "warning":
      return f"warning: {line['text']}"
    case "save_failed":
      return f"warning: {line['reason']} Training continues."
    case "damaged":
      return (
          f"warning: the checkpoint of step {line['checkpoint']} is damaged; "
          f"training continues from step {line['step']}."
      )
    case "saving" | "skipped" as event:
      return f"{event}: {line['reason']}"
    case "uploaded":
      return (
          f"uploaded step {line['saved']}: {line['mib']:.1f} MiB in {line['secs']:.1f} s, "
          f"{line['mib_per_sec']:.1f} MiB/s"
      )
    case "slow":
      before = f", named {n} times before" if (n := line.get("named_before")) else ""
      factor = f"{line['factor']} times as slow as it should be"
      host = f" on {line['host']}" if line["host"] else ""  # None in one process.
      return f"slow: {line['node']}{host}{before}, {factor}"
  return None


def show(progress: progress_lib.ProgressLine, line: Mapping[str, Any]) -> None:
  """Shows a line of the journal on a terminal: a step or an event."""
  step = line["step"]
  match line.get("event"):
    case None:
      own = [k for k in line if not jsonl.is_reserved(k)]  # Metrics of the user.
      names = ("loss", *own, *_SHOWN[1:])
      progress.show_step(step, {k: line[k] for k in names if line.get(k) is not None})
    case jsonl.START if step:
      progress.show_text(f"resumed_from_step={step}")
    case "eval":
      values = {f"eval_{k}": v for k, v in line.items() if k != "event"}
      progress.end_pause()
      progress.show_text(progress_lib.render_line(values))
    case "pause":
      progress.explain(line["reason"], at_once=line.get("at_once", False))
    case "join":
      pass  # A pause tells it, or a view.
    case event:
      if said := describe(line):
        progress.show_text(said if event in _OF_RUN else f"step {step}: {said}")
