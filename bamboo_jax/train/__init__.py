"""Training: a run is a cohort of members that step through seven phases.

A *member* is a process that hosts one node or several. One that hosts all nodes
is training on a laptop; eight that host one each are a cluster; both run the
same `worker`, and only the cohort below it differs.

  run                  builds a member of either kind; where commands enter
  worker               the loop: steps, changes of the view, the end
  step, program_step   the phases of a step, by rows or as one program;
                       `step_plans` has its rows, `sums` decides whether
                       it may change the state
  members/             what a worker knows of the others: the cohort
  run_state            steps done, who trains what, and the arrays;
                       `state_transfer` moves them between nodes
  background_compiler  compiles for newcomers beside training
  replica_check        whether all copies of the state are equal
  evaluation           held-out loss, by all members together
  record/              what is said in votes, written and shown
  setup/               from a config to all that is needed
  environment          what a worker is given by its process

Read `step` first, then `worker`: the picture above `_regroup` is what happens
when a node dies.
"""

from bamboo_jax.base import calls

calls.make_callable(__name__)
