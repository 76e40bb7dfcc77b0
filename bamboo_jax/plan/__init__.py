"""Plans a step before it runs: partition, rows, memory and predicted time.

Pure Python; costs come from a profile of the model, measured or estimated.

  cost_model    costs of layers, and their JSON
  stages        costs of stages, from those of their layers
  memory        device memory of each node, also after a death
  partition     splits layers into stages: the fastest slowest stage that fits;
                by the algorithm in `search`
  batch_split   the batch in shares, and the shares of each pipeline
  makespan      microbatches so that unequal pipelines finish together

  planner       the plan of a run: partition, rows, memory and predicted time;
                `render` prints it
  pipelines     a pipeline of live nodes: owners, shadows, vacant stages
  rows          the rows of a step, or of its rest after a death
  residuals     where those of redundant passes wait: on the device or the host
  communication costs of sums of gradients and of refreshes, by method
  step_time     the phases of a step after the passes
  predictor     the time of a step of any pipelines, with caches

Read `planner.make_plan`, then `rows`.
"""

from bamboo_jax.base import calls

calls.make_callable(__name__)
