"""Agents on other machines, over ssh.

this machine                          host
  ssh, with a script ---------------> starts the agent
      <------- what the agent prints -
  ends its input, also by dying ----> SIGTERM: the agent saves, hands over
                                      SIGTERM, 10 s later: it ends
"""

from collections.abc import Sequence
import shlex
import subprocess
import threading
import time
from typing import NamedTuple

from bamboo_jax.cluster import children

_RETRY_SECS = 10.0
_NETWORK_SECS = 10.0  # For a host to notice that its input has ended.
_POLL_SECS = 0.1
# The address of the agent is that of the connection, as the host sees it.
# Background jobs have no input, hence file 3.
_SCRIPT = """
set -- $SSH_CONNECTION; exec 3<&0
{command} --host="$3" &
agent=$!
{{ cat; kill $agent; sleep {leave_secs}; kill $agent; }} <&3 >/dev/null 2>&1 &
end=$!; wait $agent; status=$?; kill $end 2>/dev/null; exit $status
"""


class Host(NamedTuple):
  """A machine, by the name that ssh knows, and its zone."""

  name: str
  zone: str


def parse(text: str) -> list[Host]:
  """Returns the hosts of a file: a line for each, `NAME [ZONE]`.

  `#` starts a comment. Raises `ValueError` that names the line.
  """
  hosts: dict[str, Host] = {}
  for number, line in enumerate(text.splitlines(), start=1):
    words = line.partition("#")[0].split()
    if not words:
      continue
    if len(words) > 2 or words[0].startswith("-"):
      raise ValueError(f"Line {number} must be `NAME [ZONE]`, got {line!r}.")
    if words[0] in hosts:
      raise ValueError(f"Line {number} names {words[0]} a second time.")
    hosts[words[0]] = Host(words[0], words[1] if words[1:] else "a")
  if not hosts:
    raise ValueError("There must be a host.")
  return [*hosts.values()]


class Fleet:
  """An agent on each host; a host whose agent fails is tried again.

  Not after a mistake of the user, which a second try would not mend.

  Args:
    ssh: Command that takes a host and a command for it.
    agent: Command of an agent but for its name, zone and host.
    leave_secs: Time for an agent to save and hand over.
  """

  def __init__(
      self, hosts: Sequence[Host], *, ssh: Sequence[str], agent: Sequence[str], leave_secs: int = 10
  ) -> None:
    self._ssh, self._agent, self._leave_secs = ssh, agent, leave_secs
    self._tries = dict.fromkeys(hosts, 0)
    self._failed_secs: dict[Host, float] = {}
    self._last: dict[Host, str] = {}
    self._running: dict[Host, subprocess.Popen[bytes]] = {}
    self._readers: list[threading.Thread] = []

  def run(self) -> None:
    """Runs, and shows what agents print, until none is left."""
    try:
      for host in self._tries:
        self._start(host)
      while self._running:
        self._tend(time.monotonic())
        time.sleep(_POLL_SECS)
    finally:
      self._close()

  def _start(self, host: Host) -> None:
    number, tries = [*self._tries].index(host), self._tries[host]
    self._tries[host] += 1
    name = f"n{number}-{tries}" if tries else f"n{number}"
    command = [*self._agent, f"--name={name}", f"--zone={host.zone}"]
    script = _SCRIPT.format(command=shlex.join(command), leave_secs=self._leave_secs)
    process = subprocess.Popen(
        [*self._ssh, host.name, f"exec sh -c {shlex.quote(script)}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=children.die_with_parent,
    )
    self._running[host] = process
    thread = threading.Thread(target=self._follow, args=(host, process), daemon=True)
    thread.start()
    self._readers.append(thread)

  def _follow(self, host: Host, process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
      self._tell(host, line.decode(errors="replace").rstrip())

  def _tell(self, host: Host, text: str) -> None:
    """Shows a line, unless a host that is tried again repeats itself."""
    if self._last.get(host) != text:
      self._last[host] = text
      print(f"{host.name}: {text}", flush=True)

  def _tend(self, now_secs: float) -> None:
    for host, process in [*self._running.items()]:
      if (code := process.poll()) is not None:
        del self._running[host]
        if code and code != children.MISTAKE:
          self._failed_secs[host] = now_secs
    for host, since_secs in [*self._failed_secs.items()]:
      if self._running and now_secs > since_secs + _RETRY_SECS:
        del self._failed_secs[host]
        self._start(host)

  def _close(self) -> None:
    for process in self._running.values():
      assert process.stdin is not None
      process.stdin.close()
    end_secs = time.monotonic() + self._leave_secs + _NETWORK_SECS
    for host, process in self._running.items():
      try:
        process.wait(max(0.0, end_secs - time.monotonic()))
      except subprocess.TimeoutExpired:
        process.kill()
        self._tell(host, "does not answer; its agent may still run")
    for thread in self._readers:
      thread.join(1.0)  # The last lines of a process that has ended.
