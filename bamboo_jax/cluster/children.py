"""Child processes that cannot outlive their parent."""

from collections.abc import Callable, Collection, Mapping, Sequence
import contextlib
import ctypes
import os
import signal
import subprocess

# Exit status after a mistake of the user, see `cli.command`; and of a worker
# after an error of its own machine, which `describe_exit` calls `LOCAL_EXIT`.
MISTAKE, LOCAL = 2, 3
LEFT = 143  # Of an agent that has left after a notice, as of what SIGTERM has ended.
LOCAL_EXIT = f"exit status {LOCAL}"
_PR_SET_PDEATHSIG = 1
_PF_EXITING = 4  # Of the kernel's task flags.
_FLAGS, _PENDING, _EXIT_CODE = 6, 28, 49  # Fields of proc(5), from the state.
_CPU = slice(11, 13)  # In user and in system mode.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
  """Makes the kernel kill this process with its parent; for `preexec_fn`."""
  _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  # A terminal sends an interrupt to the whole group, and some schedulers send
  # SIGUSR1 to it; the parent decides.
  if os.getsid(0) != os.getpid():
    os.setsid()
  # SIGUSR2 asks a worker, which may not be that far yet; see `waits`.
  for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
  """As `die_with_parent`, and ignores SIGTERM; for a worker.

  Some schedulers, such as Slurm, announce a preemption by SIGTERM to all
  processes.
  """
  die_with_parent()
  signal.signal(signal.SIGTERM, signal.SIG_IGN)


def start(
    command: Sequence[str],
    log: str | os.PathLike[str],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    prepare: Callable[[], None] = die_with_parent,
) -> subprocess.Popen[bytes]:
  """Starts a process whose output is appended to `log`, without input.

  It calls `prepare` first; other arguments are those of `subprocess.Popen`.
  """
  with open(log, "ab") as file:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=file,
        env=env,
        pass_fds=pass_fds,
        preexec_fn=prepare,
    )


def describe_exit(code: int) -> str:
  """Returns how a process ended, such as "was killed by SIGKILL"."""
  if code >= 0:
    return f"ended with exit status {code}"
  try:
    return f"was killed by {signal.Signals(-code).name}"
  except ValueError:
    return f"was killed by signal {-code}"


def is_stopped(pid: int) -> bool:
  """Returns whether a process is stopped, by SIGSTOP or a debugger."""
  return _read_stat(pid)[:1] in (["T"], ["t"])


def cpu_ticks(pid: int) -> int:
  """Returns the processor time of a process, in ticks; 0 if it is gone."""
  return sum(map(int, _read_stat(pid)[_CPU]))


def find_exit(pid: int) -> int | None:
  """Returns the return code of a child that is ending, else None.

  `wait` returns up to seconds later, once the kernel has freed its memory.
  """
  stat = _read_stat(pid)
  if not stat:
    return None
  if int(stat[_PENDING]) & 1 << (signal.SIGKILL - 1):
    return -signal.SIGKILL
  if int(stat[_FLAGS]) & _PF_EXITING:
    return os.waitstatus_to_exitcode(int(stat[_EXIT_CODE]))
  return None


def _read_stat(pid: int) -> list[str]:
  """Returns the fields of /proc/PID/stat from the state on; [] if gone."""
  try:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
      return file.read().rpartition(")")[2].split()
  except OSError:
    return []


def reap_orphans(own: Collection[int], *, first: int = 1) -> None:
  """Reaps processes that have ended, if this is the first one of a container.

  They were children of others, such as the worker of an agent that was killed.
  Those in `own` are left to who started them.
  """
  if os.getpid() == first:
    for name in filter(str.isdecimal, os.listdir("/proc")):
      is_orphan = _read_stat(int(name))[:2] == ["Z", str(first)]
      if is_orphan and int(name) not in own:
        with contextlib.suppress(ChildProcessError):  # Reaped meanwhile.
          os.waitpid(int(name), os.WNOHANG)


def read_tail(path: str | os.PathLike[str], *, num_lines: int) -> str:
  """Returns the last lines of a log, or why there are none."""
  try:
    with open(path, "rb") as file:
      file.seek(max(0, os.path.getsize(path) - 8192))
      lines = file.read().decode(errors="replace").splitlines()
  except OSError as error:
    return f"({error.strerror})"
  return "\n".join(lines[-num_lines:])
