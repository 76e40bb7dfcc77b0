r"""Shows the progress of a cluster.

bamboo status --workdir=runs/cluster
bamboo status --workdir=runs/cluster --watch
bamboo status --workdir=runs/cluster --page
bamboo status --etcd=127.0.0.1:2379 --secret=FILE

Lists nodes, layout, failures that would be survived now, and times of the last
recoveries. Reads only the store and files, so it disturbs no worker. With the
`--workdir` of a running `bamboo cluster` no other flag is needed; for agents
that were started one by one, name the store.
"""

import json
import sys
import threading
import time

from absl import flags

from bamboo_jax.cluster.store import registry as registry_lib
from bamboo_jax.launch import cli, observer_flags as given, page_flags
from bamboo_jax.report import status
from bamboo_jax.report.live import feed as feed_lib, server

_WATCH = flags.DEFINE_bool("watch", False, "Show it again every second.")
_JSON = flags.DEFINE_bool("json", False, "Print all that a page shows, as JSON.")
_find_page_port = page_flags.define()
flags.adopt_module_key_flags(given)
_CLEAR = "\033[H\033[2J"  # Of a terminal.


def main() -> None:
  """Reads from the store, and prints or serves."""
  observed = given.connect()
  registry, run = observed.registry, observed.run
  feed = feed_lib.Feed(observed.workdir, registry, name=run)
  with given.explaining():
    if _JSON.value:
      print(json.dumps(feed.read()))
    elif (port := _find_page_port()) is not None:
      feed.read()  # There is such a run.
      token = server.make_token(observed.secret)
      address = server.start(feed.read, token=token, port=port)
      print(f"page: {address}", flush=True)
      threading.Event().wait()
    else:
      _show(registry, run)


def _show(registry: registry_lib.Registry, run: str) -> None:
  while True:
    text = status.render(status.read(registry, run), now_secs=time.time())
    is_screen = _WATCH.value and sys.stdout.isatty()
    print(_CLEAR * is_screen + text, flush=True)
    if not _WATCH.value:
      return
    time.sleep(1.0)


if __name__ == "__main__":
  cli.run(main)
