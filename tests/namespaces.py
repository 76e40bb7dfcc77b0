r"""Trains on nodes in network namespaces, and disturbs what is between them.

python -m tests.namespaces --workdir=FOLDER [--nodes=4] [--steps=400] [--regions=known] [KIND ...]

Takes root, and Linux with `ip`, `ss` and tun devices. Each node is a namespace
with an agent; packets between them pass a switch in this
process, which delays, loses and drops them. Faults come one after the other,
each while training goes on:

  reset    connections between the agents of two nodes are reset, ten times
  cut      all connections between workers and between agents are reset, fifty
           times; exits with 1 if that leads to another view
  one_way  nothing gets from one node to another, for 1.5 s
  loss     2 % of all packets are lost, for 20 s
  loss5    5 % of all packets are lost, for 20 s
  loss20   20 % of all packets are lost, for 15 s
  mtu      packets above 1,400 bytes to and from one node are lost, for 30 s
  delay    each packet takes 200 ms, for 20 s
  leader   nothing gets to or from the leader, for 15 s

With `--regions` the halves of the nodes are in two regions, with a link of 50 ms each way
and 200 Mbit/s between them; it is "known" to the run, or "unknown". Then no fault comes
unless a KIND is given, and the time of a step is printed.

Prints a line for each: steps and members before and after. Exits with 1 if a
node is left out that was neither killed nor cut off, if one does not end well,
or if the state is not that of `bamboo train`.
"""

import argparse
from collections.abc import Callable
import contextlib
import fcntl
import functools
import heapq
import itertools
import json
import os
import pathlib
import random
import secrets
import select
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time

from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.net import identity

_TUN = "/dev/net/tun"
_SET_TUN = 0x400454CA
_TUN_FLAGS = 0x1001  # IP packets, and nothing else.
_NET = "10.79.0."
_PATIENCE_SECS = 120.0
_SMALL_BYTES = 1400
_LATENCY_MS, _MBITS = 50.0, 200.0  # Between regions; the former each way.
_ENV = {**os.environ, "JAX_PLATFORMS": "cpu"}


class Switch:
  """Carries packets between hosts, which are addresses.

  Attributes:
    cut: Source and destination of packets that are dropped.
    small: The same of packets that are dropped if they are large.
    loss: Part of all packets that is lost.
    delay_secs: How long each takes.
    region_of: Region of each address; from one to another packets share a slow link.
  """

  def __init__(self) -> None:
    self.cut: set[tuple[str, str]] = set()
    self.small: set[tuple[str, str]] = set()
    self.loss = self.delay_secs = 0.0
    self.region_of: dict[str, int] = {}
    self._free_secs: dict[tuple[int | None, ...], float] = {}  # By link.
    self._files: dict[str, int] = {}
    self._due: list[tuple[float, int, int, bytes]] = []
    self._order = itertools.count()
    self._poll = select.epoll()

  def add(self, address: str, file: int) -> None:
    self._files[address] = file
    self._poll.register(file, select.EPOLLIN)

  def run(self) -> None:
    while True:
      with contextlib.suppress(OSError):  # A namespace is gone.
        for file, _ in self._poll.poll(self._next_secs()):
          self._take(os.read(file, 1 << 16))
        while self._due and self._due[0][0] <= time.monotonic():
          _, _, file, packet = heapq.heappop(self._due)
          os.write(file, packet)

  def _next_secs(self) -> float:
    return max(self._due[0][0] - time.monotonic(), 0.0) if self._due else 1.0

  def _take(self, packet: bytes) -> None:
    ends = tuple(".".join(map(str, packet[i : i + 4])) for i in (12, 16))
    file = self._files.get(ends[1])
    if file is None or ends in self.cut or random.random() < self.loss:
      return
    if ends in self.small and len(packet) > _SMALL_BYTES:
      return
    due_secs = time.monotonic() + self.delay_secs
    link = tuple(map(self.region_of.get, ends))
    if link[0] != link[1]:
      sent_secs = max(due_secs, self._free_secs.get(link, 0.0)) + 8e-6 * len(packet) / _MBITS
      self._free_secs[link] = sent_secs
      due_secs = sent_secs + _LATENCY_MS / 1e3
    heapq.heappush(self._due, (due_secs, next(self._order), file, packet))


def _ip(*arguments: str) -> None:
  subprocess.run(["ip", *arguments], check=True)


class Net:
  """Namespaces, by name, on a switch; all are gone at the end."""

  def __init__(self, names: list[str], stack: contextlib.ExitStack) -> None:
    self.switch = Switch()
    self.addresses = {n: f"{_NET}{i}" for i, n in enumerate(names, start=2)}
    self._stack = stack
    self._space = lambda name: f"bamboo-{os.getpid()}-{name}"
    for name in names:
      self._add(name)
    threading.Thread(target=self.switch.run, daemon=True).start()

  def start(self, name: str, *command: str, log: pathlib.Path) -> subprocess.Popen:
    with open(log, "ab") as file:
      process = subprocess.Popen(self._enter(name, *command), env=_ENV, stdout=file, stderr=file)
    self._stack.callback(process.wait)
    self._stack.callback(process.kill)
    return process

  def reset(self, one: views.Member, other: views.Member) -> None:
    for side, port in (("dport", other.port), ("sport", one.port)):
      ends = ("dst", other.host, side, "=", f":{port}")
      command = self._enter(one.name, "ss", "--kill", "--tcp", *ends)
      subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

  def reset_all(self, name: str) -> int:
    """Resets all connections of a node."""
    command = ("ss", "--kill", "--no-header", "--tcp", "state", "established")
    command = self._enter(name, *command, f"dst {_NET}0/24")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return len(done.stdout.splitlines())

  def pairs(self, name: str) -> set[tuple[str, str]]:
    one = self.addresses[name]
    others = {*self.addresses.values()} - {one}
    return {p for o in others for p in ((one, o), (o, one))}

  def _enter(self, name: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", self._space(name), *command]

  def _add(self, name: str) -> None:
    space, device = self._space(name), f"bb{name}"
    file = os.open(_TUN, os.O_RDWR)
    request = struct.pack("16sH", device.encode(), _TUN_FLAGS)
    fcntl.ioctl(file, _SET_TUN, request)
    _ip("netns", "add", space)
    self._stack.callback(_ip, "netns", "delete", space)
    _ip("link", "set", device, "netns", space)
    inside = ("-netns", space)
    _ip(*inside, "address", "add", f"{self.addresses[name]}/24", "dev", device)
    for link in ("lo", device):
      _ip(*inside, "link", "set", link, "up")
    self.switch.add(self.addresses[name], file)


class Run:
  """A run of training, in a folder."""

  def __init__(self, args: argparse.Namespace, net: Net) -> None:
    self.net, self.folder = net, args.workdir / "run"
    self.nodes = [f"n{i}" for i in range(args.nodes)]
    self.excused: set[str] = set()
    zones = ["ab"[i % 2] for i in range(args.nodes)]
    if args.regions:
      half_of = [2 * i // args.nodes for i in range(args.nodes)]
      zones = [("us/a", "eu/a")[half] for half in half_of]
      net.switch.region_of = dict(zip(net.addresses.values(), half_of, strict=True))
    secret = args.workdir / "secret"
    secret.write_text(secrets.token_hex())
    secret.chmod(0o600)
    key = identity.find_entry_key(identity.read_secret(str(secret)))
    self._records = records_lib.Records(self.folder, key)
    self.agents = {
        name: net.start(
            name,
            sys.executable,
            "-m",
            "launch.agent",
            *_config(args),
            f"--secret={secret}",
            f"--workdir={self.folder}",
            f"--name={name}",
            f"--zone={zone}",
            f"--host={net.addresses[name]}",
            f"--nodes={args.nodes}",
            log=args.workdir / f"{name}.log",
        )
        for name, zone in zip(self.nodes, zones, strict=True)
    }

  def view(self) -> views.View:
    return judge.newest_view(self._records)

  def times_ms(self) -> list[float]:
    """Returns the times of the steps in the log."""
    path = self.folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["step_ms"] for line in lines if '"loss"' in line]

  def steps(self) -> int:
    return len(self.times_ms())

  def wait_steps(self, count: int) -> None:
    """Waits until so many further steps are done; `SystemExit` if none are."""
    wanted, end_secs = self.steps() + count, time.monotonic() + _PATIENCE_SECS
    while self.steps() < wanted:
      if time.monotonic() > end_secs or all(
          agent.poll() is not None for agent in self.agents.values()
      ):
        sys.exit(f"No {count} steps after step {wanted - count}.")
      time.sleep(0.1)


# Faults; each ends when its generator does.


def _reset(run: Run) -> None:
  for _ in range(10):
    one, other = random.sample(run.view().members, 2)
    run.net.reset(one, other)
    time.sleep(0.5)


def _cut(run: Run) -> None:
  before, count = run.view(), 0
  for _ in range(50):
    count += sum(map(run.net.reset_all, run.nodes))
    time.sleep(random.uniform(0.5, 2.0))
  print(f"cut: {count} sockets were reset", flush=True)
  if run.view() != before:
    sys.exit(f"Another view after resets: {run.view().reason}.")


def _one_way(run: Run) -> None:
  one, other = random.sample(run.view().members, 2)
  run.net.switch.cut.add((one.host, other.host))
  time.sleep(1.5)


def _mtu(run: Run) -> None:
  run.net.switch.small |= run.net.pairs(run.view().members[0].name)
  time.sleep(30.0)


def _hold(run: Run, *, secs: float, loss: float = 0.0, delay_secs: float = 0.0) -> None:
  run.net.switch.loss, run.net.switch.delay_secs = loss, delay_secs
  time.sleep(secs)


def _leader(run: Run) -> None:
  leader = run.view().members[0].name
  run.excused.add(leader)
  run.net.switch.cut |= run.net.pairs(leader)
  time.sleep(15.0)


KINDS: dict[str, Callable[[Run], None]] = {
    "reset": _reset,
    "cut": _cut,
    "one_way": _one_way,
    "loss": functools.partial(_hold, secs=20.0, loss=0.02),
    "loss5": functools.partial(_hold, secs=20.0, loss=0.05),
    "loss20": functools.partial(_hold, secs=15.0, loss=0.2),
    "mtu": _mtu,
    "delay": functools.partial(_hold, secs=20.0, delay_secs=0.2),
    "leader": _leader,
}


_LINK = (f"--config.plan.region_latency_ms={_LATENCY_MS}", f"--config.plan.region_mbits={_MBITS}")


def _config(args: argparse.Namespace) -> list[str]:
  return [
      "--config=configs/sweep_faults.py",
      "--config.model.options.num_blocks=1",
      "--config.pipeline.num_pipelines=2",
      "--config.pipeline.num_stages=2",
      f"--config.pipeline.num_microbatches={6 if args.regions else 2}",
      "--config.checkpoint.every_steps=0",
      f"--config.num_steps={args.steps}",
      f"--program_cache={args.workdir / 'programs'}",
      *(_LINK if args.regions == "known" else ()),
  ]


def _disturb(run: Run, kinds: list[str]) -> None:
  switch = run.net.switch
  for kind in kinds:
    before, members = run.steps(), len(run.view().members)
    KINDS[kind](run)
    during = run.steps()
    switch.cut, switch.small = set(), set()
    switch.loss = switch.delay_secs = 0.0
    run.wait_steps(2)
    view = run.view()
    times_ms = run.times_ms()
    usual_ms = max(times_ms[max(before - 20, 1) : before], default=0.0)
    longest_ms = max(times_ms[before:])
    print(
        f"{kind}: step {before}, {during} at its end, {len(times_ms)} after; "
        f"longest {longest_ms:.0f} ms, {usual_ms:.0f} before; "
        f"{members} members, {len(view.members)} after: {view.reason}",
        flush=True,
    )


def _ends_well(agent: subprocess.Popen) -> bool:
  try:
    return agent.wait(5 * _PATIENCE_SECS) == 0
  except subprocess.TimeoutExpired:
    return False


def _sha256(folder: pathlib.Path) -> str:
  return json.loads((folder / "summary.json").read_text())["state_sha256"]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--workdir", type=pathlib.Path, required=True)
  parser.add_argument("--nodes", type=int, default=4)
  parser.add_argument("--steps", type=int, default=400)
  parser.add_argument("--regions", choices=("known", "unknown"))
  parser.add_argument("kinds", nargs="*", metavar="KIND")
  args = parser.parse_args()
  args.kinds = args.kinds or ([] if args.regions else [*KINDS])
  signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
  if unknown := {*args.kinds} - KINDS.keys():
    parser.error(f"KIND must be one of {', '.join(KINDS)}, got {unknown}.")
  args.workdir = args.workdir.resolve()
  args.workdir.mkdir(parents=True)
  whole = args.workdir / "whole"
  train = (sys.executable, "-m", "launch.train", *_config(args))
  with open(args.workdir / "train.log", "w") as log:
    subprocess.run([*train, f"--workdir={whole}"], check=True, stdout=log, env=_ENV)
  with contextlib.ExitStack() as stack:
    names = [f"n{i}" for i in range(args.nodes)]
    run = Run(args, Net(names, stack))
    run.wait_steps(2)
    _disturb(run, args.kinds)
    bad = [
        name
        for name, agent in run.agents.items()
        if not _ends_well(agent) and name not in run.excused
    ]
  if args.regions:
    times_ms = run.times_ms()[2:]
    print(f"step: median {statistics.median(times_ms):.0f} ms, least {min(times_ms):.0f} ms")
  is_same = _sha256(run.folder) == _sha256(whole)
  print(f"state_is_the_same={is_same} left_out={','.join(bad) or 'nobody'}")
  sys.exit(0 if is_same and not bad else 1)


if __name__ == "__main__":
  main()
