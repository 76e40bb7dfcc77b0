"""What a worker is given by the process that it runs in."""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.train import cohort as cohort_lib
from bamboo_jax.train import switch_session
from bamboo_jax.train import workdir as workdir_lib


@dataclasses.dataclass(frozen=True)
class Environment:
  """What a worker is given by the process it runs in.

  Attributes:
    cohort: All members.
    workdir: Where everything goes.
    transfers: What is between the devices of several processes.
    host: Where others reach this process; None without others.
    secret: Shared by all processes of the cluster.
    faults: What happens on purpose.
    director: Is told when a fault is due; None without faults.
    progress: Where to show steps; None if somebody else does.
    prefetches: Whether to prepare data ahead, in a thread.
  """

  cohort: cohort_lib.Cohort
  workdir: workdir_lib.Workdir
  transfers: switch_session.Transfers = switch_session.NoTransfers()
  host: str | None = None
  secret: bytes = b""
  faults: Sequence[faults_lib.Fault] = ()
  director: cohort_lib.Director | None = None
  progress: progress_lib.Progress | None = None
  prefetches: bool = False
