"""The arguments of a worker that depend on its process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import time
from typing import Any

from bamboo_jax.cluster import views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.training import cohort as cohort_lib
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import executors

# Called with the number of a committed step, from 1, and its metrics by name.
Callback = Callable[[int, Mapping[str, Any]], Any]


@dataclasses.dataclass(frozen=True)
class Environment:
  """The arguments of a worker that depend on its process.

  Attributes:
    name: Name of this member among several; "" if it is alone.
    processes: Runs programs over several processes; None without.
    progress: Shows steps; None if another member does.
    prefetches: Whether to prepare data ahead, in a thread.
    check_fence: Raises `base.FencedError` once the life of the run to which a
      view belongs is over.
    note_done: Records that all steps of the run to which a view belongs are done.
    stops: Returns whether to save and end the run after this step.
    callbacks: Called after every committed step that this member writes.
    started_secs: Start of the local nodes, on `time.perf_counter`.
  """

  cohort: cohort_lib.Cohort
  workdir: workdir_lib.Workdir
  name: str = ""
  processes: executors.ProcessRing | None = None
  faults: Iterable[faults_lib.Fault] = ()
  progress: progress_lib.ProgressLine | None = None
  prefetches: bool = False
  check_fence: Callable[[views.View], None] = lambda view: None
  note_done: Callable[[views.View], None] = lambda view: None
  stops: Callable[[], bool] = lambda: False
  callbacks: Sequence[Callback] = ()
  started_secs: float = dataclasses.field(default_factory=time.perf_counter)
