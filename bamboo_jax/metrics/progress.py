"""Progress of a run: one moving bar on a terminal, else lines for `grep`.

Lines are `name=value` pairs:

  step=12 loss=3.4123 lr=0.0003 tokens_per_sec=1234 bubble_pct=31.2
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import errno
import numbers
import os
import sys
import threading
import time
from typing import Any, TextIO

import tqdm

# Digits after the point by the suffix of the name, which is the unit.
_FORMATS = {
    "loss": ".4f",
    "accuracy": ".4f",
    "_norm": ".4f",
    "_pct": ".1f",
    "_ms": ".1f",
    "_secs": ".2f",
    "_per_sec": ".0f",
}
_SHORT = {"learning_rate": "lr"}  # Names shown in lines of steps.

_PAUSE_SECS = 1.0  # After a longer pause the reason is shown.
_NARROW = 80  # Columns of a terminal; on fewer the loss comes before the speed.
_WAIT_SECS = 2.0  # Of a command that has not begun to train.


class Reminder(threading.Thread):
  """Shows a text once something lasts long; then, every 5 s, how long so far.

  After half a minute it repeats itself less and less often.
  """

  every_secs = 5.0

  def __init__(self, show: Callable[[str], object], text: str, first_secs: float) -> None:
    super().__init__(name="reminder", daemon=True)
    self._show, self._text, self._first_secs = show, text, first_secs
    self._is_over = threading.Event()

  def cancel(self) -> None:
    self._is_over.set()

  def run(self) -> None:
    since_secs, text, secs = time.monotonic(), self._text, self._first_secs
    while not self._is_over.wait(secs):
      self._show(text)
      past_secs = time.monotonic() - since_secs
      secs = max(self.every_secs, past_secs / 6)
      text = f"{self._text} ({past_secs + secs:.0f} s so far)"


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
  """Says on standard error that a `with` block is long, such as an import.

  With the environment variable BAMBOO_JAX_QUIET it says nothing, for scripts.
  """
  if os.environ.get("BAMBOO_JAX_QUIET"):
    yield
    return
  reminder = Reminder(_show_error, text, _WAIT_SECS)
  reminder.start()
  try:
    yield
  finally:
    reminder.cancel()
    reminder.join()  # A process with another thread may not be forked.


def _show_error(text: str) -> None:
  with contextlib.suppress(OSError):  # Its reader may be gone.
    print(text, file=sys.stderr, flush=True)


def render_line(values: Mapping[str, int | float | str]) -> str:
  """Returns `name=value` pairs, spaces between them, in the order given."""
  return " ".join(f"{name}={_render(name, v)}" for name, v in values.items())


def render_redundancy(found: Mapping[str, str | float]) -> str:
  """Returns the line of a run's redundant passes, from its summary."""
  values = {"redundancy": found["mode"]}
  for name in ("overhead", "coverage"):
    for entry in (name, f"planned_{name}"):
      values[f"{entry}_pct"] = 100 * found[entry]
  return render_line(values)


class ProgressLine:
  """Shows steps, or another unit, on a stream, by default standard output."""

  def __init__(
      self,
      *,
      num_steps: int,
      stream: TextIO | None = None,
      unit: str = "step",
      pause_secs: float = _PAUSE_SECS,
  ) -> None:
    """Shows nothing yet; pauses above `pause_secs` are explained."""
    self._unit = unit
    self._stream = sys.stdout if stream is None else stream
    self._pause_secs = pause_secs
    self._reason = Reminder(self.show_text, "", pause_secs)
    self._lock = threading.Lock()
    self._bar = None
    if self._stream.isatty():
      tqdm.tqdm.monitor_interval = 0  # Its thread would keep a cluster from forking nodes.
      options: dict[str, Any] = dict(unit=unit, dynamic_ncols=True, miniters=1)
      if _find_columns(self._stream) < _NARROW:
        options["bar_format"] = "{n_fmt}/{total_fmt} {bar} {elapsed}<{remaining}{postfix}"
      self._bar = tqdm.tqdm(total=num_steps, file=self._stream, **options)

  def show_step(self, step: int, values: Mapping[str, int | float | str]) -> None:
    """Shows that `step` steps are done, with their metrics."""
    self.end_pause()
    values = {_SHORT.get(name, name): v for name, v in values.items()}
    if self._bar is None:
      self.show_text(render_line({self._unit: step, **values}))
    else:
      self._bar.set_postfix_str(render_line(values), refresh=False)
      self._bar.update(step - self._bar.n)

  def end_pause(self) -> None:
    """Forgets the reason of a pause, which has passed."""
    self._reason.cancel()

  def show_text(self, text: str) -> None:
    """Writes a separate line, above the bar if there is one."""
    try:
      with self._lock:
        if self._bar is None:
          print(text, file=self._stream, flush=True)
        else:
          self._bar.write(text, file=self._stream)
    except OSError as error:
      # On a full disk training goes on, and the buffer is written later.
      if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise

  def explain(self, reason: str, *, at_once: bool = False) -> None:
    """Shows why training pauses, once no step has ended for a while.

    A later call replaces the reason. What may be short must be shown `at_once`.
    """
    self.end_pause()
    first_secs = self._pause_secs
    if at_once:
      self.show_text(reason)
      first_secs = Reminder.every_secs
    text = f"pause: {reason}" if self._unit == "step" else reason
    self._reason = Reminder(self.show_text, text, first_secs)
    self._reason.start()

  def __enter__(self) -> "ProgressLine":
    return self

  def __exit__(self, *unused_exc: object) -> None:
    self.end_pause()
    if self._bar is not None:
      self._bar.close()


def _find_columns(terminal: TextIO) -> int:
  try:
    return os.get_terminal_size(terminal.fileno()).columns
  except OSError:  # It has no file.
    return _NARROW


def _render(name: str, value: int | float | str) -> str:
  if isinstance(value, (numbers.Integral, str)):
    return str(value)
  for ending, spec in _FORMATS.items():
    if name.endswith(ending):
      return format(float(value), spec)
  return format(float(value), ".5g")
