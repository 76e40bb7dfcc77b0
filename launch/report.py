r"""Writes a page on a run, from the files of its workdir.

bamboo report --workdir=runs/cluster

The page, `report.html` in that folder, is one file that needs nothing else:
loss with deaths, throughput and nodes over time, recoveries, where the time of
nodes and the dollars went, and the last step as planned and as measured.
"""

import pathlib

from bamboo_jax import base
from bamboo_jax.launch import cli, shared_flags
from bamboo_jax.metrics import progress
from bamboo_jax.report import page
from bamboo_jax.report.live import document, feed as feed_lib

_WORKDIR = shared_flags.define_workdir("Of the run; the page goes there.")


def main() -> None:
  """Reads the files, and writes the page."""
  workdir = pathlib.Path(_WORKDIR.value)
  if not (workdir / "metrics.jsonl").exists():
    raise ValueError(f"There is no run in {workdir}: no metrics.jsonl.")
  feed = feed_lib.Feed(workdir, name=workdir.resolve().name)
  path = workdir / page.PAGE_NAME
  with progress.waiting("the files of the run are read, and the page is written"):
    base.write_atomically(path, document.render(feed.read()))
  print(f"report: {path}")


if __name__ == "__main__":
  cli.run(main)
