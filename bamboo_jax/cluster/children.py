"""Child processes that cannot outlive their parent."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
  """Makes the kernel kill this process when its parent dies.

  For `preexec_fn`: it runs in the child, before the program.
  """
  _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  # A terminal sends an interrupt to the whole group; the parent decides.
  signal.signal(signal.SIGINT, signal.SIG_IGN)


def describe_exit(code: int) -> str:
  """Returns how a process has ended, from its return code."""
  if code >= 0:
    return f"exit status {code}"
  try:
    return signal.Signals(-code).name
  except ValueError:
    return f"signal {-code}"


def is_stopped(pid: int) -> bool:
  """Returns whether a process is stopped, as by SIGSTOP or a debugger."""
  try:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
      return file.read().rpartition(")")[2].split()[0] in ("T", "t")
  except OSError:
    return False  # It is gone.


def read_tail(path: str | os.PathLike[str], *, num_lines: int) -> str:
  """Returns the last lines of a log, or why there are none."""
  try:
    with open(path, "rb") as file:
      file.seek(max(0, os.path.getsize(path) - 8192))
      lines = file.read().decode(errors="replace").splitlines()
  except OSError as error:
    return f"({error.strerror})"
  return "\n".join(lines[-num_lines:])
