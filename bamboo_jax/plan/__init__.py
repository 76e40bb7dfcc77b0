"""Plans a step before it runs: who computes what, in which order, how fast.

Pure Python; costs come from a profile of the model, measured or estimated.

  cost_model    what each layer costs, as JSON too
  stages        what each stage costs, from the costs of its layers
  memory        what each node needs on its device, also after a death
  partition     splits layers into stages: the fastest slowest stage that fits;
                `search` is how
  batch_split   the batch in shares, and which pipeline computes which
  makespan      microbatches so that unequal pipelines finish together

  planner       the plan of a run: partition, rows, memory and predicted time;
                `render` prints it
  program       the same as one program in lockstep
  pipelines     a pipeline of live nodes: owners, shadows, vacant stages
  rows          the rows of a step, whole or what is left of it after a death
  communication what sums of gradients and refreshes cost, by method
  step_time     the phases of a step after the passes
  predictor     the time of a step of any pipelines; remembers what it played

Read `planner.make_plan`, then `rows`.
"""

from bamboo_jax.base import calls

calls.make_callable(__name__)
