"""One-line faults of the folder, and of the second review; see `mutants`."""

_AGENT = "bamboo_jax/cluster/agent/"

MUTANTS = {
    # Ask and answer, and the folder.
    "nobody_answers": (
        "folder",
        (f"{_AGENT}membership.py", "      state.start(_answer(state), once=True)", "      pass"),
    ),
    "who_asks_does_not_wait": (
        "folder",
        (
            f"{_AGENT}run_over.py",
            "  yield events_lib.Sleep(state.options.limits.most_silence_secs)\n"
            "  yield from state.until_ok(membership.read, state)\n",
            "",
        ),
    ),
    "members_look_only_when_told": (
        "folder",
        (f"{_AGENT}arrival.py", "  state.start(membership.look_at_folder(state))\n", ""),
    ),
    "a_view_of_others_is_taken_for_the_question": (
        "folder",
        (f"{_AGENT}run_over.py", "    if not made.is_ask:\n      return False\n", ""),
    ),
    "a_damaged_view_stays": (
        "folder",
        ("bamboo_jax/cluster/store/fence.py", "VOID_SECS = 10.0", "VOID_SECS = 1e9"),
    ),
    "a_damaged_view_is_void_for_one_only": (
        "folder",
        ("bamboo_jax/cluster/store/fence.py", 'yield "create", name, _render(void)', "return void"),
    ),
    "a_claim_is_believed": (
        "folder",
        (
            "bamboo_jax/cluster/store/fence.py",
            "found = yield from self._read_view(stamp, view.number)",
            "found = view",
        ),
    ),
    # It would only disturb training.
    "a_copy_is_told_to_workers": (
        "tests/cluster/agent/core_test.py",
        (
            f"{_AGENT}membership.py",
            "  if view.repeats:  # The worker knows the original.\n",
            "  if view.repeats and state.roster.is_member:\n"
            "    state.tell_worker(messages.NewView(view))\n"
            "  if view.repeats:\n",
        ),
    ),
    # A newcomer hears the views in order, unless a connection is reset.
    "newcomers_miss_the_original": (
        "tests/cluster/agent/core_test.py",
        (f"{_AGENT}membership.py", "    adopt(state, views.original(view))", "    pass"),
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
    "m03_worker_ignores_later_epoch": (
        "folder",
        ("bamboo_jax/cluster/store/fence.py", "if found.epoch > claim.epoch:", "if False:"),
    ),
    "m04_fence_reads_first_life": (
        "folder",
        (
            "bamboo_jax/cluster/store/fence.py",
            "begun[-1].epoch if begun",
            "begun[0].epoch if begun",
        ),
    ),
    # In the simulation each channel is a queue of its own; sockets are not.
    "m05_settle_forgets_order": (
        "tests/runtime/spmd/processes/settle_test.py",
        (
            "bamboo_jax/runtime/spmd/processes/settle.py",
            "      before[entry].update(row[-1:])\n",
            "      pass\n",
        ),
    ),
    "m06_no_grace_if_certain": (
        "net",
        (
            f"{_AGENT}knowledge/suspicion.py",
            "return _CERTAIN_GRACE_SECS if edge.is_certain",
            "return 0.0 if edge.is_certain",
        ),
    ),
    "m07_one_refusal_is_enough": (
        "net",
        (
            f"{_AGENT}knowledge/suspicion.py",
            "      if 2 * sum(e.is_certain for e in edges) > len(voters):",
            "      if sum(e.is_certain for e in edges) >= 1:",
        ),
        (
            f"{_AGENT}knowledge/suspicion.py",
            "if 2 * self._num_certain[m] > len(voters)}",
            "if self._num_certain[m] >= 1}",
        ),
    ),
    # Drawn plans seldom have the folder hang for so long that it matters, and
    # no longer; a test has those histories.
    "m09_silent_members_are_over_soon": (
        "tests/simulation/ask_test.py",
        (
            f"{_AGENT}run_over.py",
            "  return state.options.limits.most_silence_secs * min",
            "  return _ALONE_SECS * min",
        ),
    ),
    "m10_woken_worker_not_checked": (
        "race",
        (
            "bamboo_jax/cluster/client_state.py",
            "    if away_secs > _AWAY_BEATS * self._heartbeat_secs:",
            "    if False:",
        ),
    ),
    "m11_own_posts_of_former_view_dropped": (
        "votes",
        (
            f"{_AGENT}knowledge/board.py",
            "((self._own, former), (self._taken, view))",
            "((self._own, view), (self._taken, view))",
        ),
    ),
    "m12_no_doubt_after_silence": (
        "race",
        (
            "bamboo_jax/cluster/client_state.py",
            "    if self._now() - since_secs >= self._silence_secs:",
            "    if False:",
        ),
    ),
    # Members find a view in the folder 2 s later, so nothing is wrong for long.
    "m14_reached_not_told_views": (
        "tests/cluster/agent/core_test.py",
        (f"{_AGENT}links.py", "    send(messages.NewView(view))\n", "    pass\n"),
    ),
    # Its silence kills it too, 9 s later.
    "m16_stopped_worker_not_killed": (
        "tests/cluster/agent/own_worker_test.py",
        (
            f"{_AGENT}knowledge/watch.py",
            "    if silent_secs > self._limits.stopped_secs and is_stopped:",
            "    if False:",
        ),
    ),
    # It is left out again after some seconds, as plans say that it may be.
    "m17_takes_newcomer_that_members_cannot_reach": (
        "tests/cluster/agent/selection_test.py",
        (
            f"{_AGENT}selection.py",
            "        and not any(i in suspicions.of(m) for m in members)\n",
            "",
        ),
    ),
    # The others end after 10 s, well, but the last checkpoint may be theirs to
    # write, and the simulation has no files of checkpoints.
    "m18_done_agent_not_left_out": (
        "tests/cluster/agent/own_worker_test.py",
        (
            f"{_AGENT}selection.py",
            '    lost |= {i: "it is done" for i',
            '    lost |= {i: "" for i in () for i',
        ),
    ),
    "m19_newcomer_takes_a_folder_without_asking": (
        "folder",
        (
            f"{_AGENT}run_stamp.py",
            "  if newest.is_ask:\n    yield",
            "  return True\n  if newest.is_ask:\n    yield",
        ),
    ),
    "m20_answers_count_for_nothing": (
        "dark",
        (
            f"{_AGENT}membership.py",
            "  if asked.is_ask and state.roster.view.number == asked.number:",
            "  if True:",
        ),
    ),
}
