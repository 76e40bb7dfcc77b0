"""Checkpoints and logs of a worker of `trainer`, in memory."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
from typing import TYPE_CHECKING

from bamboo_jax import base
from bamboo_jax.testing.simulation import fake_engine, worker as worker_lib
from bamboo_jax.train import failures as failures_lib, step as step_lib
from bamboo_jax.train.members import cluster_cohort

if TYPE_CHECKING:
  from bamboo_jax.testing.simulation import trainer


class FakeFiles:
  """Checkpoints, log and all else that a worker has beside its nodes."""

  def __init__(
      self,
      worker: "trainer.TrainerWorker",
      engine: fake_engine.FakeEngine,
      cohort: cluster_cohort.ClusterCohort,
  ) -> None:
    self._worker, self._engine, self._cohort = worker, engine, cohort
    self._saved = worker.shared.saved_stages

  # As `checkpoint.writer`.

  num_skipped = 0

  def steps(self) -> tuple[int, ...]:
    """Returns the steps whose checkpoints are complete."""
    num_stages = self._worker.num_stages
    whole = [s for s, h in self._saved.items() if len(h) == num_stages]
    return tuple(s for s in sorted(whole) if s)

  # As `train.record.run_log`.

  def vote(
      self,
      *,
      seen: base.ViewId,
      ready: int,
      stops: bool,
      failure: failures_lib.Failure,
      step: fake_engine.Step,
  ) -> step_lib.Vote:
    """Returns a vote on a step, without measurements."""
    return step_lib.Vote(seen=seen, ready=ready, stops=stops, failure=failure)

  def commit(
      self, step: fake_engine.Step, votes: Mapping[base.NodeId, step_lib.Vote], *, saves: bool
  ) -> None:
    """Compares the state with that of a run without faults, and saves it."""
    worker, node = self._worker, self._engine.nodes.get(self._worker.number)
    steps = worker.steps
    wanted = fake_engine.states_after(steps, worker.num_stages)
    held = node.state if node else {}
    wrong = {s: v for s, v in held.items() if v != wanted[s]}
    if steps % worker_lib.SAVE_STEPS == 0:
      self._saved[steps].update(held)
    worker.note_commit(f"{wrong or ''}")

  def newest_ready(self, failures: failures_lib.Failures) -> int:
    """Returns the newest view that is known: it is compiled at once."""
    del failures
    return max(self._cohort.newest.number, self._cohort.view.number)

  @contextlib.contextmanager
  def during(self, what: str) -> Iterator[None]:
    """Measures nothing."""
    yield

  def __getattr__(self, name: str) -> Callable[..., None]:
    """What is called beside these asks only who writes."""
    if name not in _IGNORED:
      raise AttributeError(name)
    return self._ask_who_writes

  def _ask_who_writes(self, *args: object, **options: object) -> None:
    if self._worker.loop is not None:
      assert self._worker.loop.state.is_writer in (False, True)


_IGNORED = (
    *("abandon", "add_loss", "begin", "close", "compare_copies", "compile"),
    *("explain", "explain_change", "explain_view", "follow", "meet"),
    *("note_ready", "prepare", "prepare_nodes", "roll_back"),
    "note_damaged",
    *("save_last", "show", "warn_of_save", "welcome", "write_summary", "wait"),
)
