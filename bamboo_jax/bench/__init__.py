"""Benchmarks: a small pipeline, one process and one core per stage.

Machines drift, so nothing is timed by itself: in each round all *variants* (an
executor with a mode of redundancy, or another system) take turns in random
order, and the result is the median of their ratios, round by round.

  turns        processes, variants that take turns in them, and what a case
               measures; first
  cases        which case a config asks for; profile and plan, which all share
  table        rows of numbers: medians, ratios of pairs, text and files

  rivals       case: our step against the same model in PyTorch
  redundancy   case: all modes of redundancy, and deaths within a step
  executors    case: rows against one program, with and without redundancy
  memory       case: predicted memory of nodes against what they use
  shape        case: throughput with f of N nodes gone

  ablation     trials of `bamboo ablate`, and their summary

  worker       the process of one stage: answers commands
  joined       what joins it with those of the other stages
  variants     executors and modes that take turns in it
  deaths       where a step is cut when a node dies
  predict      predictions of the plan, also for longer pipelines
  torch_rival  the process of one stage under PyTorch
"""
