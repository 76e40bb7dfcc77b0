"""Faults that reviews have found and that are mended; see `mutants`."""

_AGENT = "bamboo_jax/cluster/agent/"

# Numbers are those of the first review.
MUTANTS = {
    "a1_closed_is_dead": (
        "net",
        (
            f"{_AGENT}links.py",
            'at once, after its connection has broken."""\n',
            'at once, after its connection has broken."""\n'
            "  state.roster.gone[incarnation] = reason\n",
        ),
    ),
    "a1_hearsay_is_believed": (
        "net",
        (
            f"{_AGENT}selection.py",
            "  lost |= found\n",
            "  lost |= {i: 'said' for m in left for i in state.suspicions.of(m)" " if i in left}\n",
        ),
    ),
    "a1_newcomers_accuse": (
        "net",
        (
            f"{_AGENT}knowledge/suspicion.py",
            "if by in are_left and (by == self._me",
            "if (by == self._me",
        ),
    ),
    "a1_no_grace": (
        "net",
        (
            f"{_AGENT}knowledge/suspicion.py",
            "return _CERTAIN_GRACE_SECS if edge.is_certain else _GRACE_SECS",
            "return 0.0",
        ),
    ),
    "a1_who_is_cut_off_goes_on": (
        "net",
        (
            f"{_AGENT}knowledge/suspicion.py",
            "collections.Counter(itertools.chain.from_iterable(pairs))",
            "{m: m in suspected for pair in pairs for m in pair}",
        ),
        (
            f"{_AGENT}selection.py",
            "part = views.part_that_stays(roster.view, view)",
            "return Uncertainty.NONE",
        ),
    ),
    "a2_agents_end_with_their_workers": (
        "workers",
        (f"{_AGENT}membership.py", "    if state.cause:\n", "    if False:\n"),
    ),
    "a2_all_are_waited_for": (
        "workers",
        (f"{_AGENT}selection.py", "is_enough or are_all) and", "is_enough) and"),
    ),
    "a3_begins_although_others_have": (
        "all",
        (
            f"{_AGENT}selection.py",
            "        ready.origin is None\n        and i in roster.known",
            "        i in roster.known",
        ),
    ),
    "a4_who_is_not_heard_is_dead": (
        "store",
        (f"{_AGENT}run_over.py", "if not (yield from _ask_in_vain(state)):", "if False:"),
    ),
    "a4_a_lapsed_lease_is_a_death": (
        "store",
        (
            f"{_AGENT}run_over.py",
            "  return all(state.suspicions.suspects(i) for i in members)",
            "  return True",
        ),
        (f"{_AGENT}run_over.py", "if not (yield from _ask_in_vain(state)):", "if False:"),
    ),
    "a5_an_empty_store_is_as_good": (
        "store",
        (
            "bamboo_jax/cluster/store/registry.py",
            "if self._guard is not None and found != self._guard[1]:",
            "if False:",
        ),
        ("bamboo_jax/cluster/store/registry.py", "guard=self._guard", "guard=None"),
        ("bamboo_jax/cluster/store/etcd.py", "if revision < floor:", "if False:"),
    ),
    "a6_only_the_leader_tells_the_store": (
        "store",
        (
            f"{_AGENT}membership.py",
            "    if state.incarnation in left[:_NUM_PUBLISHERS]:",
            "    if state.incarnation in left[:1]:",
        ),
    ),
    "a6_the_store_is_not_told": (
        "store",
        (
            f"{_AGENT}membership.py",
            "      state.start(_publish(state, wait_secs), once=True)",
            "      pass",
        ),
    ),
    "two_views_of_one_number": (
        "folder",
        (
            "bamboo_jax/testing/simulation/share.py",
            "    if name not in self._files:\n      if self.num_torn",
            "    if True:\n      if self.num_torn",
        ),
    ),
    "a9_refused_for_ever_is_alive": (
        "crash",
        (f"{_AGENT}run_over.py", "state.now >= state.over_secs + _patience_secs(state)", "False"),
    ),
    "a9_busy_agents_excuse_all": (
        "stop",
        (
            f"{_AGENT}knowledge/watch.py",
            "      self._work.excuse(now)\n    self._awake_secs",
            "      self._work.excuse(now)\n"
            "      for s in self._agents.values():\n"
            "        s.excuse(self.awake(now))\n"
            "    self._awake_secs",
        ),
    ),
    "a7_a_transfer_is_answered_twice": (
        "tests/runtime/spmd/processes/transfer_log_test.py",
        (
            "bamboo_jax/runtime/spmd/processes/transfer_log.py",
            "if self._answers_for < self._stopped_for:",
            "if False:",
        ),
    ),
    "who_lags_does_not_commit": (
        "train",
        (
            "bamboo_jax/train/run_state.py",
            "    if -1 < self.steps < agreement.steps:\n      commit()\n",
            "",
        ),
    ),
    "passes_are_run_again": (
        "train",
        (
            "bamboo_jax/train/worker.py",
            "self._plans.rest(layout, agreement.holdings)",
            "self._plans.whole(layout)",
        ),
    ),
    "fillers_are_taken_for_values": (
        "train",
        (
            "bamboo_jax/testing/simulation/fake_transport.py",
            "    self.check()\n    if len(sent) > place:",
            "    if len(sent) > place:",
        ),
    ),
    "what_is_missed_is_not_said_again": (
        "net",
        (
            f"{_AGENT}links.py",
            "    for post in state.board.own(view):\n      send(post)",
            "    pass",
        ),
    ),
    "a13_old_members_improve_once_more": (
        "train",
        ("bamboo_jax/train/worker.py", "return self._regroup()  # The", "self._regroup()  # The"),
    ),
    "newcomers_wait_to_be_told": (
        "train",
        ("bamboo_jax/train/run_state.py", 'facts={"restart": True}', "facts={}"),
    ),
}
