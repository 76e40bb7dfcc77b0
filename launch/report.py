r"""Writes a page on a run, from the files of its workdir.

bamboo report --workdir=runs/cluster

The page, `report.html` in that folder, is one file that needs nothing else:
loss with deaths, throughput and nodes over time, recoveries, where the time of
nodes and the dollars went, and the last step as planned and as measured.
"""

from collections.abc import Mapping
import pathlib

from bamboo_jax import base
from bamboo_jax.launch import cli, shared_flags
from bamboo_jax.metrics import jsonl, progress, summary as summary_lib
from bamboo_jax.recovery import durations
from bamboo_jax.report import page
from bamboo_jax.report.live import document, feed as feed_lib

_WORKDIR = shared_flags.define_workdir("Of the run; the page goes there.")


def main() -> None:
  """Reads the files, and writes the page."""
  workdir = pathlib.Path(_WORKDIR.value)
  if not (workdir / "metrics.jsonl").exists():
    raise ValueError(f"There is no run in {workdir}: no metrics.jsonl.")
  feed = feed_lib.Feed(workdir, name=workdir.resolve().name, kills=_find_kills(workdir))
  path = workdir / page.PAGE_NAME
  with progress.waiting("the files of the run are read, and the page is written"):
    base.write_atomically(path, document.render(feed.read()))
  print(f"report: {path}")


def _find_kills(workdir: pathlib.Path) -> Mapping[base.NodeId, float]:
  """Returns times of death, which only the launcher of a cluster knew."""
  if not (workdir / "summary.json").exists():
    return {}
  lines = jsonl.read_lines(workdir / "metrics.jsonl")
  recoveries = [line for line in lines if line.get("event") == "recovery"]
  summary = summary_lib.read_summary(workdir / "summary.json")
  return durations.find_kills(recoveries, summary.more.get("recoveries", ()))


if __name__ == "__main__":
  cli.run(main)
