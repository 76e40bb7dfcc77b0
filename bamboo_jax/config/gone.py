"""Options that are gone, and what to use instead."""

from collections.abc import Mapping

# What follows "<option> is gone: ".
GONE: Mapping[str, str] = {
    "config.policies": "`bamboo simulate` takes them as --policies=A,B.",
    "config.sweep": "`bamboo simulate` takes an option and its values as --sweep=NAME=A,B.",
    "config.trace": (
        "config.study.trace says how preemptions are generated, --trace names a file of them."
    ),
    "config.workload": "config.model, config.pipeline and config.plan say what is trained.",
    "config.cluster.num_watchers": "an agent hears all others, each less often in large clusters.",
    "config.data.prefetch_steps": "the data of one step is prepared ahead, as 1 said.",
    "config.pipeline.head": (
        "head and loss of executor='spmd' run with the backward pass, which always took less time."
    ),
    "config.pipeline.ticks": (
        "a tick of executor='spmd' has two passes; where these need too much memory, "
        "take executor='rows'."
    ),
    "config.pipeline.unit": (
        "programs belong to blocks, as 'block' said; a model of your own whose layers are not "
        "called 'block.part' shares programs by layer."
    ),
    "config.plan.balance": (
        "stages are balanced by time, within plan.memory_limit_gib; set this limit lower for "
        "stages that need less memory."
    ),
    "config.recovery.preconnect": "nodes connect before they need each other, as True said.",
    "config.redundancy.overrun": "a pass of 'eager' may be late by 1.6 of itself, as 1.6 said.",
    "config.redundancy.rereplicate": (
        "replicas that died are made again as the step is committed, as 'at_commit' said."
    ),
    "config.redundancy.host_memory_gib": (
        "it only refused to start; `bamboo plan` tells what nodes keep in host memory, and "
        "redundancy.slots='device' or mode='lazy' keep less there."
    ),
}
