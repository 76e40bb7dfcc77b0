"""Makes copies of itself and prints what became of them, for `copies_test`."""

import json
import os
import signal
import socket
import subprocess
import sys

from absl import app, flags, logging

from bamboo_jax.cluster import copies

_NAME = flags.DEFINE_string("name", "nobody", "Whose words these are.")


def ends(unused_path):
  """How copies end."""

  def fail():
    raise ValueError("this copy fails")

  runs = (int, lambda: sys.exit(3), lambda: sys.exit("why"), fail)
  codes = [copies.Copy(run).wait() for run in runs]
  copy = copies.Copy(signal.pause)
  try:
    copy.wait(timeout=0.01)
  except subprocess.TimeoutExpired:
    copy.kill()
  return [*codes, copy.wait(timeout=60), copy.wait(), copy.poll()]


def files(unused_path):
  """Which of two files a copy has."""
  (kept, end), (lost, _) = os.pipe(), os.pipe()

  def look():
    links = [os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in (end, lost)]
    os.write(end, json.dumps(links).encode())

  copies.Copy(look, keeps=[end]).wait()
  return json.loads(os.read(kept, 1 << 10))


def data(path):
  """What copies and their original read, in turn, of a file opened before."""
  with open(path, "rb", buffering=0) as file:
    said = [file.read(2).decode()]
    kept, end = os.pipe()
    for _ in range(2):
      look = lambda: os.write(end, file.read(2))
      copies.Copy(look, keeps=[end]).wait()
      said.append(os.read(kept, 2).decode())
    return [*said, file.read(2).decode()]


def orphan():
  """The number of a copy, which nobody is going to wait for."""
  ours, theirs = os.pipe()

  def live():
    os.write(theirs, b"x")
    signal.pause()

  pid = copies.Copy(live, keeps=[theirs]).pid
  os.read(ours, 1)  # It is on its way by now.
  return pid


def spare(log):
  """What a copy says that is told later what to do."""
  one = copies.Spare()
  command = [sys.executable, "-m", "tests.cluster.copier", "--name=b", "hello"]
  copy = one.start(command, log=log)
  one.socket.sendall(b"for the command")
  said = one.socket.recv(1 << 10).decode()
  return [said, copy.wait()]


def hello(number):
  """Answers by a socket."""
  with socket.socket(fileno=int(number)) as end:
    told = f"{_NAME.value} got {end.recv(1 << 10).decode()}"
    is_deaf = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    end.sendall(f"{told}, SIGTERM is ignored: {is_deaf}".encode())
  logging.info("%s is a copy: %s", _NAME.value, copies.is_copy)


def main(argv):
  _, do, *arguments = argv
  print(json.dumps(globals()[do](*arguments)), flush=True)
  if do == "orphan":
    os._exit(0)


if __name__ == "__main__":
  app.run(main)
