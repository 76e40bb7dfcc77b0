"""Makes the parts of a run from a config; no other package reads its keys.

accept          keys, types and policy of a config that a user gives, model and
                tokenizer of its folder of Hugging Face
build           task (model and data), profile, plan, rules of recovery, engine
sizes           numbers that need neither model nor JAX
optimizers      optax optimizers and schedules of their learning rates, by name
show            the plan as text, for `bamboo plan`, with speed and dollars on machines that
                can be rented
job             all parts in one value, the executor, the checkpoint writer; read first
"""
