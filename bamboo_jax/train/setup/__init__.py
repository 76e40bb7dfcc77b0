"""From a config to all that a run needs; the only readers of its layout.

accept          keys, types and policy of a config that a user gives
checks          values that can never be right
build           task (model and data), profile, plan, rows, engine
build_program   the same for `executor="spmd"`, whose passes are programs
build_recovery  the ladder, the planner and the rules of recovery
policy          a policy of the simulator as settings of a run
sizes           numbers that need neither model nor JAX
optimizers      optax optimizers by name
schedules       their learning rates, by name
show            the plan as text, for `bamboo plan`
preparation     what is made before there are devices, for many processes
saving          the checkpoint writer
job             all of it in one value; read first
"""
