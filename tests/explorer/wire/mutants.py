r"""Puts one-line faults into the transport's protocol, and finds them.

python -m tests.explorer.wire.mutants [--histories=4000] [NAME ...]

Prints for each the first history that violates an invariant, and which; the
last line is `mutants=N found=K`.
"""

import argparse
import inspect
import types

from bamboo_jax.runtime.wire import protocol as protocol_lib
from tests.explorer.wire import history

# Name: text of the module, and what it becomes.
MUTANTS = {
    "duplicate_accepted": ("if frame.seq > self._received:", "if frame.seq >= self._received:"),
    "not_sent_again": ("self._queue.extendleft(reversed(self._sent))", "pass"),
    "sent_again_reversed": ("extendleft(reversed(self._sent))", "extendleft(self._sent)"),
    "sent_again_at_the_end": (
        "self._queue.extendleft(reversed(self._sent))",
        "self._queue.extend(self._sent)",
    ),
    "old_attempt_delivered": ("elif frame.attempt == self.attempt:", "else:"),
    "future_attempt_delivered": (
        "if frame.attempt > self.attempt:",
        "if frame.attempt > self.attempt + 1:",
    ),
    "kept_bytes_outlive_attempt": (
        "    self.kept_bytes = 0\n    self._queue.clear",
        "    self._queue.clear",
    ),
    "queue_outlives_attempt": ("    self._queue.clear()\n", ""),
    "sent_outlives_attempt": ("    self._sent.clear()\n    self._numbers", "    self._numbers"),
    "expected_outlives_attempt": ("    self._expected.clear()\n", ""),
    "numbers_outlive_attempt": ("    self._numbers.clear()\n", ""),
    "seq_reset": ("    self.attempt = attempt\n", "    self.attempt, self._seq = attempt, 0\n"),
    "forgets_one_too_many": ("frames[0].seq <= ack:", "frames[0].seq <= ack + 1:"),
    "forgets_one_too_few": ("frames[0].seq <= ack:", "frames[0].seq < ack:"),
    "forgets_sent_only": (
        "for frames in (self._sent, self._queue):\n      while frames",
        "for frames in (self._sent,):\n      while frames",
    ),
    "held_lost": ("for f in held if f.attempt == attempt]", "for f in held if False]"),
    "held_of_any_attempt": ("for f in held if f.attempt == attempt]", "for f in held]"),
    "held_of_all_attempts": (
        "if self._held and self._held[0].attempt != frame.attempt:",
        "if False:",
    ),
    "held_after_advance": ("[f for f in held if f.attempt > attempt]", "held"),
    "silence_not_seen": ("if now - self._heard >= times.dead_secs:", "if False:"),
    "no_ping": ("or now - self._said >= times.ping_secs:", "or False:"),
    "dial_never_times_out": ("now - self._dial_since >= times.dial_secs:", "False:"),
    "dial_times_out_without_connection_only": (
        "if has_dialled and now",
        "if has_dialled and not self.connection and now",
    ),
    "own_dial_wins": (
        "    self._greeted = None\n    rank = (self._greeted_round, self._me)\n"
        "    if rank <= self._rank:",
        "    self._greeted = None\n    rank = (self._greeted_round, self._me)\n" "    if False:",
    ),
    "any_hello_wins": (
        "rank = (hello.seq, self._peer)\n    if rank <= self._rank:",
        "rank = (hello.seq, self._peer)\n    if False:",
    ),
    "tie_not_broken": ("rank = (hello.seq, self._peer)", "rank = (hello.seq, self._me)"),
    "round_not_learnt": ("    self._round = max(self._round, hello.seq)\n", ""),
    "round_not_new": ("    self._round += 1\n", ""),
    "not_acknowledged": ("    self._unsaid_bytes += 1 + frame.size", "    pass"),
    "acknowledges_what_was_sent": ("self._forget(frame.ack)", "self._forget(frame.seq)"),
    "greeting_acknowledges_nothing": (
        "seq=number, ack=self._received, meta=name",
        "seq=number, ack=0, meta=name",
    ),
    "crossing_dial_given_up": (
        "    self._heard = self._said = now\n    #",
        "    self._heard = self._said = now\n    self._greeted = None\n    #",
    ),
    "former_left_open": (
        'return [] if former is None else [Close(former, "replaced")]',
        "return []",
    ),
    "rejected_left_open": (
        'if rank <= self._rank:\n      return [Close(connection, "older")]\n' "    actions",
        "if rank <= self._rank:\n      return []\n    actions",
    ),
    "lost_dial_not_repeated": (
        "      self._is_dialling = False\n      self._retry(now)\n",
        "      self._retry(now)\n",
    ),
    "late_dial_used": ('return [Close(connection, "the dial had timed out")]', "pass"),
    "lost_greeting_not_repeated": (
        "    if connection == self._greeted:\n      self._greeted = None\n",
        "    if connection == self._greeted:\n      self._dial_since = 1e9\n",
    ),
    "old_connection_read": (
        "    if connection != self.connection:\n      return []  # The values",
        "    if False:\n      return []  # The values",
    ),
    "ack_only_by_tick": ("self._ack_is_due |= self._unsaid_bytes > self._times.ack_bytes", "pass"),
}

# What no history can find, and why.
EQUIVALENT = {
    "lost_dial_not_repeated": "the dial times out; a test of its own finds it",
    "old_connection_read": "what arrives twice is dropped",
    "greeting_acknowledges_nothing": "what is sent again is dropped",
    "ack_only_by_tick": "costs memory at the sender, within one tick",
}


def load(name: str) -> types.ModuleType:
  """Returns the protocol with a fault in it."""
  text = inspect.getsource(protocol_lib)
  old, new = MUTANTS[name]
  assert text.count(old) == 1, (name, text.count(old))
  module = types.ModuleType("protocol")
  exec(compile(text.replace(old, new), name, "exec"), module.__dict__)
  return module


def find(name: str, *, num_histories: int) -> str | None:
  """Returns the violation that a fault leads to first."""
  protocol = load(name)
  for seed in range(num_histories):
    try:
      history.explore(seed, protocol=protocol)
    except Exception as error:  # A fault may raise anything.
      return f"history {seed}: {type(error).__name__} {error}"
  return None


def main() -> None:
  """Looks for all faults, or those named."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--histories", type=int, default=4000)
  parser.add_argument("names", nargs="*", default=[*MUTANTS])
  args = parser.parse_args()
  num_found = 0
  for name in args.names:
    found = find(name, num_histories=args.histories)
    num_found += found is not None
    print(f"{name}: {found or EQUIVALENT.get(name, 'NOT FOUND')}", flush=True)
  print(f"mutants={len(args.names)} found={num_found}")


if __name__ == "__main__":
  main()
