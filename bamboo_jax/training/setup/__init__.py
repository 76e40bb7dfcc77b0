"""Makes the parts of a run from a config; no other package reads its keys.

accept          keys, types and policy of a config that a user gives, model and
                tokenizer of its folder of Hugging Face
build           task (model and data), profile, plan, rules of recovery, engine
executors       the executor that the config names: rows, or programs
sizes           numbers that need neither model nor JAX
optimizers      optax optimizers by name
schedules       their learning rates, by name
show            the plan as text, for `bamboo plan`
rental          speed and dollars of a run on machines that can be rented
saving          the checkpoint writer
job             all parts in one value; read first
"""
