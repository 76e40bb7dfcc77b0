"""The surroundings of a worker."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import time
from typing import Any

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.train.members import cohort as cohort_lib
from bamboo_jax.train.members import transfers as transfers_lib
from bamboo_jax.train.record import workdir as workdir_lib

# Called with the number of a committed step, from 1, and its metrics by name.
Callback = Callable[[int, Mapping[str, Any]], Any]


@dataclasses.dataclass(frozen=True)
class Environment:
  """What the process gives to its worker.

  Attributes:
    transfers: Between the devices of several processes.
    faults: What happens on purpose.
    director: Carries out faults; None without.
    progress: Where to show steps; None if another member does.
    prefetches: Whether to prepare data ahead, in a thread.
    check_fence: Raises `base.FencedError` if others may write to the workdir
      instead of the members of an epoch.
    stops: Whether the run is to end after this step, saved.
    callbacks: Called after every committed step that this member writes.
    started_secs: Since when local nodes are there, on `time.perf_counter`.
  """

  cohort: cohort_lib.Cohort
  workdir: workdir_lib.Workdir
  transfers: transfers_lib.Transfers = transfers_lib.NoTransfers()
  faults: Sequence[faults_lib.Fault] = ()
  director: cohort_lib.Director | None = None
  progress: progress_lib.Progress | None = None
  prefetches: bool = False
  check_fence: Callable[[int], None] = lambda epoch: None
  stops: Callable[[], bool] = lambda: False
  callbacks: Sequence[Callback] = ()
  started_secs: float = dataclasses.field(default_factory=time.perf_counter)
