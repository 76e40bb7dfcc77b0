r"""Puts faults into the control plane and the transport, and finds them by exploring.

python -m tests.explorer.mutants [--seeds=1000] [NAME ...]

Each is made in a copy of the repository. Prints for each the mode, the seed of
the first history that violates an invariant, and which; the last line is
`mutants=N found=K`. A few are found by no history, for the reason beside them;
instead of a mode they name the test that fails.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_AGENT = "bamboo_jax/cluster/agent/"
_PROTOCOL = "bamboo_jax/runtime/wire/protocol.py"
_RECORDS = "bamboo_jax/cluster/records.py"
_JUDGE = "bamboo_jax/cluster/judge.py"

# Name: mode, or a test; file, text, and what it becomes, once or more.
MUTANTS = {
    # Faults that reviews have found and that are mended; numbers are those of the first review.
    "a1_closed_is_dead": (
        "net",
        (
            f"{_AGENT}agent.py",
            "          reason = await closed\n",
            "          reason = await closed\n          roster.gone[who] = reason\n",
        ),
    ),
    "a1_hearsay_is_believed": (
        "net",
        (
            f"{_AGENT}roster.py",
            "    lost |= found\n",
            "    lost |= {i: 'said' for m in left for i in self.suspicions.of(m) if i in left}\n",
        ),
    ),
    "a1_newcomers_accuse": (
        "net",
        (f"{_AGENT}suspicion.py", "if by in are_left and (by == self._me", "if (by == self._me"),
    ),
    "a1_no_grace": (
        "net",
        (
            f"{_AGENT}suspicion.py",
            "return _CERTAIN_GRACE_SECS if edge.is_certain else _GRACE_SECS",
            "return 0.0",
        ),
    ),
    "a1_who_is_cut_off_goes_on": (
        "net",
        (
            f"{_AGENT}suspicion.py",
            "collections.Counter(itertools.chain.from_iterable(pairs))",
            "{m: m in suspected for pair in pairs for m in pair}",
        ),
        (
            f"{_AGENT}roster.py",
            "part = views.part_that_stays(self.view, view)",
            "return Uncertainty.NONE",
        ),
    ),
    "a2_agents_end_with_their_workers": (
        "workers",
        (f"{_AGENT}agent.py", "      if self._cause:\n", "      if False:\n"),
    ),
    "a2_all_are_waited_for": (
        "workers",
        (f"{_AGENT}roster.py", "_num_nodes or are_all) and", "_num_nodes) and"),
    ),
    "a3_begins_although_others_have": (
        "all",
        (
            f"{_AGENT}roster.py",
            "          origin is None\n          and i in self.known",
            "          i in self.known",
        ),
    ),
    "a9_refused_for_ever_is_alive": (
        "crash",
        (f"{_AGENT}agent.py", "self._now() >= since_secs + self._find_patience()", "False"),
    ),
    "a9_busy_agents_excuse_all": (
        "stop",
        (
            f"{_AGENT}watch.py",
            "      self._work.excuse(now)\n    self._awake_secs",
            "      self._work.excuse(now)\n"
            "      for s in self._agents.values():\n"
            "        s.excuse(self.awake(now))\n"
            "    self._awake_secs",
        ),
    ),
    "who_lags_does_not_commit": (
        "tests/training/run_state_test.py",
        (
            "bamboo_jax/training/run_state.py",
            "    if -1 < self.steps < agreement.steps:\n      commit()\n",
            "",
        ),
    ),
    "what_is_missed_is_not_said_again": (
        "net",
        (
            f"{_AGENT}agent.py",
            "        for post in self._board.own(view.number):\n          self._tell(post, [who])",
            "        pass",
        ),
    ),
    "newcomers_wait_to_be_told": (
        "tests/training/run_state_test.py",
        ("bamboo_jax/training/run_state.py", 'facts={"restart": True}', "facts={}"),
    ),
    # Ask and answer, and the records.
    "a4_who_is_not_heard_is_dead": (
        "judge",
        (
            f"{_AGENT}agent.py",
            "      if not asked.is_ask or roster.view != asked:",
            "      if False:",
        ),
    ),
    "members_look_only_when_told": (
        "late",
        (f"{_AGENT}agent.py", "    self._start(self._follow)\n", "    roster.registered = set()\n"),
    ),
    # Those of a list that was made before the records were.
    "r_what_was_asked_for_is_believed": (
        "tests/cluster/records_bucket_test.py",
        (
            _RECORDS,
            "    if (found := self.find(key, kind)) is None:",
            "    found = value\n    if found is None:",
        ),
    ),
    "r_what_is_there_is_replaced": (
        "late",
        (
            "tests/explorer/judge.py",
            "    if key not in values or self.ignores_conditions:\n",
            "    if key not in values or self._random.random() < 0.05:\n",
        ),
    ),
    "r_former_view_not_read": (
        "tests/cluster/judge_test.py",
        (_JUDGE, "  if known.number and records.find(", "  if False and records.find("),
    ),
    "r_life_not_checked": (
        "tests/cluster/judge_test.py",
        (_JUDGE, "    if not later.members:\n      raise", "    if False:\n      raise"),
    ),
    "r_probe_left_out": (
        "tests/explorer/history_test.py",
        (
            f"{_AGENT}agent.py",
            "      await self._ask(Records.probe, self.incarnation)\n",
            "      pass\n",
        ),
    ),
    "r_probe_takes_all": (
        "tests/cluster/records_bucket_test.py",
        (_RECORDS, "[1, 1]:", "[1, 1] and False:"),
    ),
    "r_bucket_without_conditions": (
        "tests/cluster/records_bucket_test.py",
        (_RECORDS, 'mode="create", use_multipart', "use_multipart"),
    ),
    "r_one_page_of_marks": (
        "tests/cluster/records_bucket_test.py",
        (
            _RECORDS,
            'self._obstore.list(self._place, f"{prefix}/").collect()',
            'next(iter(self._obstore.list(self._place, f"{prefix}/", chunk_size=50)))',
        ),
    ),
    "nobody_answers": (
        "late",
        (f"{_AGENT}agent.py", "        self._start_once(self._answer)", "        pass"),
    ),
    "who_asks_does_not_wait": ("late", (_JUDGE, "    elif now() >= end_secs:", "    else:")),
    # A newcomer hears the views in order, unless a connection is reset.
    "newcomers_miss_the_original": (
        "tests/cluster/agent/steps_test.py",
        (f"{_AGENT}agent.py", "      self._adopt(views.original(view))", "      pass"),
    ),
    # Those of a second review, of which exploring had found two. Three lines of
    # it were not needed, and are gone: a minority need not read before it
    # claims (m08), what is heard of a member need not be of the same view
    # (m13), and one that is missed may give a store its data back (m15).
    "m01_successor_is_newest": (
        "race",
        (
            "bamboo_jax/cluster/views.py",
            "next(v for v in later if v.numbers <= later[-1].numbers)",
            "later[-1]",
        ),
    ),
    "m02_epoch_of_new_life_kept": (
        "all",
        (
            "bamboo_jax/cluster/views.py",
            "epoch=view.epoch if view.members else view.number",
            "epoch=view.epoch",
        ),
    ),
    "m06_no_grace_if_certain": (
        "net",
        (
            f"{_AGENT}suspicion.py",
            "return _CERTAIN_GRACE_SECS if edge.is_certain",
            "return 0.0 if edge.is_certain",
        ),
    ),
    "m07_one_refusal_is_enough": (
        "net",
        (
            f"{_AGENT}suspicion.py",
            "      if 2 * num_certain > len(voters):",
            "      if num_certain >= 1:",
        ),
        (
            f"{_AGENT}suspicion.py",
            "if 2 * self._num_certain[m] > len(voters)}",
            "if self._num_certain[m] >= 1}",
        ),
    ),
    # Drawn plans seldom have the folder hang for so long that it matters, and
    # no longer; a test has those histories.
    "m09_silent_members_are_over_soon": (
        "tests/explorer/ask_test.py",
        (
            f"{_AGENT}agent.py",
            "    return self.options.limits.most_silence_secs * min",
            "    return _ALONE_SECS * min",
        ),
    ),
    "m10_woken_worker_not_checked": (
        "race",
        (
            "bamboo_jax/cluster/client.py",
            "    if self._now() - self._beat_secs > _AWAY_BEATS * self._heartbeat_secs:",
            "    if False:",
        ),
    ),
    "m11_own_posts_of_former_view_dropped": (
        "votes",
        (
            f"{_AGENT}board.py",
            "((self._own, former), (self._taken, view))",
            "((self._own, view), (self._taken, view))",
        ),
    ),
    "m12_no_doubt_after_silence": (
        "race",
        (
            "bamboo_jax/cluster/client.py",
            "    if self._now() - since_secs >= self._silence_secs:",
            "    if False:",
        ),
    ),
    # Members find a view in the folder 2 s later, so nothing is wrong for long.
    "m14_reached_not_told_views": (
        "tests/cluster/agent/steps_test.py",
        (
            f"{_AGENT}agent.py",
            "self._suspects, *map(messages.NewView, recent)):",
            "self._suspects):",
        ),
    ),
    # Its silence kills it too, 9 s later.
    "m16_stopped_worker_not_killed": (
        "tests/cluster/agent/own_worker_test.py",
        (
            f"{_AGENT}watch.py",
            "    if silent_secs > self._limits.stopped_secs and is_stopped:",
            "    if False:",
        ),
    ),
    # It is left out again after some seconds, as plans say that it may be.
    "m17_takes_newcomer_that_members_cannot_reach": (
        "tests/cluster/agent/roster_test.py",
        (
            f"{_AGENT}roster.py",
            "any(i in of(other) or other",
            "any(i in of(other).keys() and other in joining or other",
        ),
    ),
    # The others end after 10 s, well, but the last checkpoint may be theirs to
    # write, and the simulation has no files of checkpoints.
    "m18_done_agent_not_left_out": (
        "tests/cluster/agent/own_worker_test.py",
        (
            f"{_AGENT}roster.py",
            '      lost |= {i: "it is done" for i',
            '      lost |= {i: "" for i in () for i',
        ),
    ),
    "m20_answers_count_for_nothing": (
        "dark",
        (
            f"{_AGENT}agent.py",
            "    if asked.is_ask and roster.view.number == asked.number:",
            "    if True:",
        ),
    ),
    "m21_what_was_said_before_links_mended_counts": (
        "dark",
        (f"{_AGENT}suspicion.py", "edge.first_secs >= mended_secs or now", "True or now"),
    ),
    # Of the transport.
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
    if mode.startswith("tests/"):
      done = _run(folder, "pytest", "-q", "-x", "-n0", mode)
      failed = [t for t in done.stdout.splitlines() if t.startswith("FAILED")]
      return f"{failed[0]}" if failed else ""
    done = _run(
        folder,
        *("tests.explorer", f"--mode={mode}", f"--seeds={num_seeds}"),
        *("--first", "--noshrink"),
    )
  assert "histories=" in done.stdout, done.stderr
  found = [line for line in done.stdout.splitlines() if line[:5] == "seed="]
  return f"{mode} {found[0]}" if found else ""


def _run(folder: str, *command: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
      [sys.executable, "-m", *command],
      cwd=folder,
      env={**os.environ, "PYTHONPATH": folder},
      capture_output=True,
      text=True,
      check=False,
  )


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
