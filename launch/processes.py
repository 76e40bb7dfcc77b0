"""Processes that answer commands, one per stage of a pipeline."""

from collections.abc import Sequence
import subprocess


class Processes:
  """The processes of one system, one per stage, that run steps together."""

  def __init__(self, commands: Sequence[Sequence[str]]) -> None:
    self._processes = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for command in commands
    ]

  def ask(
      self, command: str, *, ranks: Sequence[int] | None = None
  ) -> list[str]:
    """Sends a command to some (all if None); returns their answers."""
    ranks = range(len(self._processes)) if ranks is None else ranks
    for rank in ranks:
      stdin = self._processes[rank].stdin
      stdin.write(command + "\n")
      stdin.flush()
    return [self.read(rank) for rank in ranks]

  def read(self, rank: int) -> str:
    """Returns the next answer of a process; `OSError` if it is gone.

    Libraries print too, so answers are marked.
    """
    for line in self._processes[rank].stdout:
      if line.startswith("answer "):
        return line.removeprefix("answer ").strip()
    code = self._processes[rank].wait()
    raise OSError(f"Stage {rank} of the benchmark ended with code {code}.")

  def wait_ready(self) -> None:
    """Waits for the first line of every process."""
    for rank in range(len(self._processes)):
      self.read(rank)

  def close(self) -> None:
    """Ends the processes."""
    for process in self._processes:
      process.stdin.close()
    for process in self._processes:
      try:
        process.wait(timeout=10)
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
