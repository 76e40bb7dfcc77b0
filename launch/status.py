r"""Shows the progress of a cluster.

bamboo status --workdir=runs/cluster
bamboo status --workdir=runs/cluster --watch
bamboo status --workdir=runs/cluster --page
bamboo status --workdir=runs/cluster --stacks

Lists nodes and their stages, failures that would be survived now, and the last
recoveries and events, as the page does. Reads only files, so it disturbs no
worker. Of a run in a bucket the log is that of the last checkpoint.

`--stacks` shows what the workers of this machine do, and which waits for which.
It asks each by signals, which disturb no step; they answer in their logs. A
worker that does not answer hangs outside of Python. On several machines, run it
on each.
"""

import dataclasses
import functools
import json
import pathlib
import sys
import threading
import time
from typing import Any

from bamboo_jax import base
from bamboo_jax.cli.flagset import flag, part
from bamboo_jax.cluster import mirror, records as records_lib
from bamboo_jax.launch import cli
from bamboo_jax.local_cluster import inquiry
from bamboo_jax.net import identity as identity_lib
from bamboo_jax.report.live import feed as feed_lib, server, words

_FETCH_SECS = 5.0  # Between two looks at a bucket.
_CLEAR = "\033[H\033[2J"  # Of a terminal.


@dataclasses.dataclass(frozen=True)
class ObserverFlags:
  """The run to look at."""

  workdir: str | None = flag(
      None, "Of a `bamboo cluster`, or of agents: a folder, or its URL.", takes_bucket=True
  )
  secret: str | None = flag(None, "File of its secret; by default `secret` in --workdir.")

  @property
  def name(self) -> str:
    """The name of the run, for people."""
    return pathlib.Path(self.workdir or "").absolute().name

  @functools.cached_property
  def folder(self) -> pathlib.Path:
    """The folder with the files of the run: its own, or a copy of those in a bucket."""
    return mirror.look(self.workdir or "")

  def read_secret(self) -> bytes:
    """Returns the secret of the run; `ValueError` without a run."""
    if self.workdir is None:
      raise ValueError("Give the --workdir of a run.")
    file = pathlib.Path(self.secret or self.folder / "secret")
    if not self.secret and not file.exists():
      raise ValueError(
          f"No cluster has run in {self.workdir}: there is no {file}, which bamboo cluster and "
          "bamboo agent write."
      )
    return identity_lib.read_secret(str(file))

  def open(self) -> records_lib.Records:
    """Returns the records of the run; `ValueError` without a run."""
    secret = self.read_secret()
    assert self.workdir is not None
    return records_lib.Records(self.workdir, identity_lib.find_entry_key(secret))


@dataclasses.dataclass(frozen=True)
class StatusFlags:
  """What to show."""

  watch: bool = flag(False, "Show it again every second.", excludes="json stacks")
  json: bool = flag(
      False, "Print all that a page shows, as JSON.", excludes="stacks page page_port"
  )
  stacks: bool = flag(
      False,
      "Ask the workers of this machine for their stacks, and what they wait for.",
      excludes="page page_port",
  )
  page: cli.PageFlags = part(cli.PageFlags)
  observed: ObserverFlags = part(ObserverFlags)


def main(flags: StatusFlags) -> None:
  """Reads the records, and prints or serves."""
  observed = flags.observed
  if flags.stacks:
    if observed.workdir is None:
      raise ValueError("The flag --workdir is needed, with --stacks.")
    logs = mirror.local(observed.workdir) / "logs"
    if not (workers := inquiry.find_workers(logs)):
      raise ValueError(f"No worker of {observed.workdir} runs on this machine.")
    print(*inquiry.render(inquiry.ask(workers, logs)), sep="\n")
    return
  records, place = observed.open(), observed.workdir or ""
  make = lambda: feed_lib.Feed(observed.folder, records, name=observed.name)
  feed, due_secs = make(), 0.0
  copy = mirror.Mirror(place, observed.folder) if base.is_bucket(place) else None

  def read() -> dict[str, Any]:
    nonlocal feed, due_secs
    if copy is not None and time.monotonic() > due_secs:
      due_secs = time.monotonic() + _FETCH_SECS
      if copy.pull():  # New files of a bucket.
        feed = make()
    return feed.read()

  if flags.json:
    print(json.dumps(read()))
  elif (port := flags.page.port) is not None:
    read()  # There is such a run.
    token = server.make_token(observed.read_secret().decode())
    address = server.start(read, token=token, port=port)
    print(f"page: {address}", flush=True)
    threading.Event().wait()
  else:
    while True:
      value = read()
      is_screen = flags.watch and sys.stdout.isatty()
      print(_CLEAR * is_screen + words.render_status(value, now_secs=time.time()), flush=True)
      if not flags.watch or value["head"]["state"] in words.ENDS:
        return
      time.sleep(1.0)


if __name__ == "__main__":
  cli.run(main)
