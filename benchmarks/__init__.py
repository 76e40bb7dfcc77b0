"""Benchmarks: a small pipeline, one process and one core per stage.

Machines drift, so no variant is timed alone: in each round all *variants* (an
executor with a mode of redundancy, or another system) take turns in random
order, and the result is the median of their ratios, round by round.

  turns        processes, variants that take turns in them, and the sizes of a
               measurement; first
  cases        selects the case of a config; the shared profile and plan
  table        rows of numbers: medians, ratios of pairs, text and files

  rivals       case: a step against the same model in PyTorch
  redundancy   case: all modes of redundancy
  executors    case: rows against one program, with and without redundancy
  memory       case: predicted against measured memory of nodes
  shape        case: throughput with f of N nodes gone

  ablation     trials of `bamboo ablate`, and their rows; ablation_report has
               tables, paired differences and the figure
  twins        trainings at the same time, shown together: `bamboo quickstart`
  story        what it prints: steps of both, and what deaths have cost

  sum_times    a sum over processes: the transport against Gloo; no case, run by itself
  record_slowness  times of nodes in a cluster, one of them slow; likewise

  worker       the process of one stage: answers commands
  joined       what joins it with those of the other stages
  variants     executors and modes that take turns in it
  predict      predictions of the plan, also for longer pipelines
  torch_rival  the process of one stage under PyTorch
"""
