"""What is kept for nodes that are gone does not grow with their number."""

import collections
import threading

from bamboo_jax.faults import faults as faults_lib
from tests import folders
from tests.verify import small

_POINTS = (3, "reduce", "vote", "apply", 5, "compute")
_EARLY, _LATE = 6, 30  # Steps; in each a node dies, and another joins.
# A line each of the file of faults, which have happened, and of the summary.
_ARE_OF_EVENTS = ("._done", ".happened", "._deaths.recoveries")


def find_sizes(root):
  """Returns the most items of the containers at each path below `root`."""
  sizes, seen, left = collections.Counter(), set(), [("", root)]
  while left:
    path, one = left.pop()
    if id(one) in seen:
      continue
    seen.add(id(one))
    if isinstance(one, (dict, list, tuple, set, frozenset, collections.deque)):
      sizes[path] = max(sizes[path], len(one))
      parts = one.values() if isinstance(one, dict) else one
      left += [(f"{path}[]", part) for part in parts]
    elif type(one).__module__.startswith("bamboo_jax"):
      names = [*getattr(one, "__dict__", ()), *getattr(one, "__slots__", ())]
      left += [(f"{path}.{n}", getattr(one, n)) for n in names if hasattr(one, n)]
  return sizes


class ChurnTest(folders.FolderCase):

  def test_many_deaths_and_joins(self):  # 30 steps, 10 s.
    faults = "\n".join(
        f"{step},0/1,{_POINTS[step % len(_POINTS)]},kill\n{step + 1},,,join"
        for step in range(1, _LATE)
    )
    trials = small.make_trials(2, 2, 1, spares=1, num_steps=_LATE + 2)
    devices = trials._job.engine.devices
    devices.update(dict.fromkeys(range(2 * _LATE), devices[0]))
    worker = trials.begin(faults_lib.parse_faults(faults, source="test"), workdir_path=self.folder)
    counted, commit = [], worker._commit

    def note(*args, **options):
      commit(*args, **options)
      counted.append((threading.active_count(), find_sizes(worker)))

    worker._commit = note
    worker.run(stop_at=_LATE)
    self.assertGreater(min(worker.state.layout.nodes), _LATE // 2)
    (threads, early), (more_threads, late) = counted[_EARLY], counted[_LATE]
    self.assertLessEqual(more_threads, threads + 1)  # One may be ending.
    grown = [path for path, size in late.items() if size > early[path] + 8]
    self.assertEmpty([p for p in grown if not p.endswith(_ARE_OF_EVENTS)])
    self.assertLen(grown, len(_ARE_OF_EVENTS))
    self.assertGreater(len(late), 100)  # It has looked everywhere.
