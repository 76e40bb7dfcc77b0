"""Plans a step before it runs: partition, rows, memory and predicted time.

Pure Python; costs come from a profile of the model, measured or estimated.

  cost_model    costs of layers and stages, and their JSON
  memory        device memory of each node, also after a death
  partition     splits layers into stages: the fastest slowest stage that fits
  batch_split   the batch in shares, and the shares and microbatches of each
                pipeline, so that unequal ones finish together

  planner       the plan of a run: partition, rows, memory and predicted time, and
                the rows of any other step, or of its rest after a death; `render`
                prints it
  pipelines     a pipeline of live nodes: owners, shadows, vacant stages
  rows          the rows of a whole step, and the rules that fill their waits
  predictor     how long a step, its parts and a death in it take

Read `planner.make_plan`, then `rows`.
"""

from bamboo_jax.base import calls

calls.make_callable(__name__)
