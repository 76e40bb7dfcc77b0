"""What `launch.gpu_check` checks: one module per check, with `run`.

Each check runs in a process of its own (see `child`), so that it starts with an
empty device and its own XLA flags, and so that its crash is only its own.
"""
