"""Traces of XLA over some steps, for XProf: `config.metrics.profile_steps`."""

import pathlib

import jax


class Profiler:
  """Traces this process while it runs `steps`, into `folder`."""

  def __init__(self, steps: range, folder: pathlib.Path) -> None:
    self._steps, self._folder = steps, folder
    self._is_on = False

  def note_done(self, step: int) -> None:
    """Starts or ends the trace after `step` steps."""
    is_due = step + 1 in self._steps
    if is_due and not self._is_on:
      jax.profiler.start_trace(str(self._folder))
    elif self._is_on and not is_due:
      jax.profiler.stop_trace()
    self._is_on = is_due

  def stop(self) -> None:
    """Ends the trace, if training ends within it."""
    if self._is_on:
      jax.profiler.stop_trace()
    self._is_on = False
