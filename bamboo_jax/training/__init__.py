"""Training: a run is a cohort of members that step through seven phases.

A *member* is a process that hosts one node or several. One that hosts all nodes
is training on a laptop; eight that host one each are a cluster; both run the
same `worker`, and only the cohort below it differs.

  run                  builds a member of either kind; where commands enter
  worker               the loop: steps, changes of the view, the end
  step                 the phases of a step, by an executor of `runtime`; clips the
                       gradient, and decides whether the step may change the state
  cohort               a worker's view of the other members, alone or in a cluster
  run_state            steps done, layout, and the arrays, all copies of which
                       are equal, and move between nodes
  background_compiler  compiles new roles in the background of training
  evaluation           held-out loss, by all members together
  failures             errors of the user's code and data, which end a run
  control              a negative control: the last step without a share
  record/              the journal of a run: what happened, summary and account
  setup/               makes the parts of a run from a config

Read `step` first, then `worker`: the picture above `_regroup` is what happens
when a node dies.
"""
