r"""Kills nodes of a small training run wherever they can die, and compares.

python -m launch.sweep_faults
python -m launch.sweep_faults --num_stages=4 --num_microbatches=4 \
  --num_pipelines=2 --modes=eager --every=3
python -m launch.sweep_faults --num_stages=4 --num_pipelines=2 \
  --kinds=pair,second,neighbours,two_stages --num_cases=100

Every node dies before every instruction of its row and before every phase of a
step. That step, and the next one on the nodes that are left, must end in the
state of a run without deaths, to the bit. Several deaths together are drawn at
random. One line tells of each size, mode and kind; each case that fails has a
line that says what differs, and can be given to `launch.train --faults`. The
exit code is 1 if there is any.
"""

from collections.abc import Iterator, Sequence
import itertools
import sys
import time
from typing import Any

from absl import flags
import tqdm

from launch import cli

_NUM_STAGES = flags.DEFINE_list("num_stages", ["2", "3", "4"], "Stages.")
_NUM_MICROBATCHES = flags.DEFINE_list(
    "num_microbatches", ["1", "4"], "Microbatches of each pipeline."
)
_NUM_PIPELINES = flags.DEFINE_list("num_pipelines", ["1", "2"], "Pipelines.")
_MODES = flags.DEFINE_list("modes", ["eager", "lazy"], "Modes of redundancy.")
_KINDS = flags.DEFINE_list(
    "kinds",
    ["single"],
    "What dies in a case: a single node; a pair that can be survived; "
    "neighbours, which cannot; a second one during the recovery; the node that "
    "runs two stages since the step before (two_stages).",
)
_EVERY = flags.DEFINE_integer(
    "every", 1, "Single deaths: before one of so many.", lower_bound=1
)
_NUM_CASES = flags.DEFINE_integer(
    "num_cases", 50, "Random cases of each other kind.", lower_bound=1
)
_SEED = flags.DEFINE_integer("seed", 0, "Of random cases.")
_SPARES = flags.DEFINE_integer(
    "spares", 0, "Nodes that take lost places.", lower_bound=0
)
_REREPLICATE = flags.DEFINE_enum(
    "rereplicate",
    "at_commit",
    ["at_commit", "at_repair"],
    "When stages without a replica get one.",
)
