r"""Puts faults into the control plane and the transport, and finds them by exploring.

python -m tests.explorer.mutants [--seeds=1000] [NAME ...]

Each is made in a copy of the repository. Prints for each the mode, the seed of the first history
that violates an invariant, and which; the last line is `mutants=N found=K`. Names are those of
the reviews that have found such faults: `a` the first, `m` the second, `r` of the records, `w`
of the transport.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_AGENT = "bamboo_jax/cluster/agent/agent.py"
_ROSTER = "bamboo_jax/cluster/agent/roster.py"
_SUSPICION = "bamboo_jax/cluster/agent/suspicion.py"
_WATCH = "bamboo_jax/cluster/agent/watch.py"
_BOARD = "bamboo_jax/cluster/agent/board.py"
_VIEWS = "bamboo_jax/cluster/views.py"
_CLIENT = "bamboo_jax/cluster/client.py"
_JUDGE = "bamboo_jax/cluster/judge.py"
_PLACE = "tests/explorer/place.py"
_PROTOCOL = "bamboo_jax/runtime/wire/protocol.py"
# Name: mode; file, text, and what it becomes, once or more.
MUTANTS = {
    "a1_closed_is_dead": (
        "net",
        (
            _AGENT,
            "          reason = await closed\n",
            "          reason = await closed\n          roster.gone[who] = reason\n",
        ),
    ),
    "a1_hearsay_is_believed": (
        "net",
        (
            _ROSTER,
            "    lost |= found\n",
            "    lost |= {i: 'said' for m in left for i in self.suspicions.of(m) if i in left}\n",
        ),
    ),
    "a1_newcomers_accuse": (
        "net",
        (_SUSPICION, "if by in are_left and (by == self._me", "if (by == self._me"),
    ),
    "a1_no_grace": (
        "net",
        (
            _SUSPICION,
            "return _CERTAIN_GRACE_SECS if edge.is_certain else _GRACE_SECS",
            "return 0.0",
        ),
    ),
    "a1_who_is_cut_off_goes_on": (
        "net",
        (
            _SUSPICION,
            "collections.Counter(itertools.chain.from_iterable(pairs))",
            "{m: m in suspected for pair in pairs for m in pair}",
        ),
        (_ROSTER, "part = views.part_that_stays(self.view, view)", "return Uncertainty.NONE"),
    ),
    "a2_agents_end_with_their_workers": (
        "workers",
        (_AGENT, "      if self._cause:\n", "      if False:\n"),
    ),
    "a2_all_are_waited_for": (
        "workers",
        (_ROSTER, "_num_nodes or are_all) and", "_num_nodes) and"),
    ),
    "a3_begins_although_others_have": (
        "all",
        (
            _ROSTER,
            "          origin is None\n          and i in self.known",
            "          i in self.known",
        ),
    ),
    "a9_refused_for_ever_is_alive": (
        "crash",
        (_AGENT, "self._now() >= since_secs + self._find_patience()", "False"),
    ),
    "a9_busy_agents_excuse_all": (
        "stop",
        (
            _WATCH,
            "      self._work.excuse(now)\n    self._awake_secs",
            "      self._work.excuse(now)\n"
            "      for s in self._agents.values():\n        s.excuse(self.awake(now))\n"
            "    self._awake_secs",
        ),
    ),
    "what_is_missed_is_not_said_again": (
        "net",
        (
            _AGENT,
            "        for post in self._board.own(view.number):\n          self._tell(post, [who])",
            "        pass",
        ),
    ),
    "a4_who_is_not_heard_is_dead": (
        "judge",
        (_AGENT, "      if not asked.is_ask or roster.view != asked:", "      if False:"),
    ),
    "members_look_only_when_told": (
        "late",
        (_AGENT, "    self._start(self._follow)\n", "    roster.registered = set()\n"),
    ),
    "r_what_is_there_is_replaced": (
        "late",
        (
            _PLACE,
            "    if key not in self.values or self.ignores_conditions:\n",
            "    if key not in self.values or self._random.random() < 0.05:\n",
        ),
    ),
    "nobody_answers": ("late", (_AGENT, "        self._start_once(self._answer)", "        pass")),
    "who_asks_does_not_wait": ("late", (_JUDGE, "    elif now() >= end_secs:", "    else:")),
    "m01_successor_is_newest": (
        "race",
        (_VIEWS, "next(v for v in later if v.numbers <= later[-1].numbers)", "later[-1]"),
    ),
    "m02_epoch_of_new_life_kept": (
        "all",
        (_VIEWS, "epoch=view.epoch if view.members else view.number", "epoch=view.epoch"),
    ),
    "m06_no_grace_if_certain": (
        "net",
        (
            _SUSPICION,
            "return _CERTAIN_GRACE_SECS if edge.is_certain",
            "return 0.0 if edge.is_certain",
        ),
    ),
    "m07_one_refusal_is_enough": (
        "net",
        (_SUSPICION, "      if 2 * num_certain > len(voters):", "      if num_certain >= 1:"),
        (_SUSPICION, "if 2 * self._num_certain[m] > len(voters)}", "if self._num_certain[m] >= 1}"),
    ),
    "m10_woken_worker_not_checked": (
        "race",
        (
            _CLIENT,
            "    if self._now() - self._beat_secs > _AWAY_BEATS * self._heartbeat_secs:",
            "    if False:",
        ),
    ),
    "m11_own_posts_of_former_view_dropped": (
        "votes",
        (
            _BOARD,
            "((self._own, former), (self._taken, view))",
            "((self._own, view), (self._taken, view))",
        ),
    ),
    "m12_no_doubt_after_silence": (
        "race",
        (_CLIENT, "    if self._now() - since_secs >= self._silence_secs:", "    if False:"),
    ),
    "m20_answers_count_for_nothing": (
        "dark",
        (_AGENT, "    if asked.is_ask and roster.view.number == asked.number:", "    if True:"),
    ),
    "m21_what_was_said_before_links_mended_counts": (
        "dark",
        (_SUSPICION, "edge.first_secs >= mended_secs or now", "True or now"),
    ),
    "w_not_sent_again": ("wire", (_PROTOCOL, "    self._next = count\n", "")),
    "w_continues_one_late": (
        "wire",
        (_PROTOCOL, "    self._next = count\n", "    self._next = count + 1\n"),
    ),
    "w_greeting_of_another_attempt": (
        "wire",
        (_PROTOCOL, "    elif attempt < self.attempt:\n      count = 0\n", ""),
    ),
    "w_forgets_one_too_many": (
        "wire",
        (_PROTOCOL, "    del self._kept[:gone]", "    del self._kept[: gone + 1]"),
    ),
    "w_kept_outlives_attempt": ("wire", (_PROTOCOL, "    self._kept = []\n\n\nclass", "\n\nclass")),
    "w_old_attempt_delivered": (
        "wire",
        (_PROTOCOL, "if frame.attempt < self.newest:", "if False:"),
    ),
    "w_held_delivered_early": (
        "wire",
        (_PROTOCOL, "if frame.attempt == self.attempt:", "if frame.attempt >= self.attempt:"),
    ),
    "w_held_is_lost": (
        "wire",
        (_PROTOCOL, "held, self._held = self._held, []\n    return held", "return []"),
    ),
    "w_older_held_delivered": (
        "wire",
        (
            _PROTOCOL,
            "self.newest, self.count, self._held = frame.attempt, 0, []",
            "self.newest, self.count = frame.attempt, 0",
        ),
    ),
    "w_count_outlives_attempt": (
        "wire",
        (
            _PROTOCOL,
            "self.newest, self.count, self._held = attempt, 0, []",
            "self.newest, self._held = attempt, []",
        ),
    ),
}


def find(name: str, num_seeds: int) -> str:
  """Returns the line of the first violation, "" if there is none."""
  mode, *edits = MUTANTS[name]
  with tempfile.TemporaryDirectory() as folder:
    for part in ("bamboo_jax", "tests"):
      ignored = shutil.ignore_patterns("__pycache__")
      shutil.copytree(_ROOT / part, f"{folder}/{part}", ignore=ignored)
    for path, text, fault in edits:
      file = pathlib.Path(folder, path)
      source = file.read_text()
      assert source.count(text) == 1, f"{name}: {path} has changed"
      file.write_text(source.replace(text, fault))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.explorer", f"--mode={mode}", f"--seeds={num_seeds}"),
            *("--first", "--noshrink"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )
  assert "histories=" in done.stdout, done.stderr
  found = [line for line in done.stdout.splitlines() if line[:5] == "seed="]
  return f"{mode} {found[0]}" if found else ""


def main() -> None:
  """Tries all, or those named."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--seeds", type=int, default=1000)
  parser.add_argument("names", nargs="*")
  args = parser.parse_args()
  names = args.names or list(MUTANTS)
  num_found = 0
  for name in names:
    line = find(name, args.seeds)
    num_found += bool(line)
    print(f"{name}: {line or 'not found'}", flush=True)
  print(f"mutants={len(names)} found={num_found}")


if __name__ == "__main__":
  main()
