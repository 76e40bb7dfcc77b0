"""The options of a run: typed, frozen and checked.

  section        a section of options, and what checks it
  config         all options, and what does not fit together
  study          what only simulations have
  gone           options of earlier versions, and what to use instead

`Config.read` makes them from the `ConfigDict` of a config file. Packages above
take the sections that they obey.
"""

from bamboo_jax.config.config import (
    ClusterSection,
    Config,
    CostSection,
    OptimizerSection,
    PipelineSection,
    RecoverySection,
    RedundancySection,
)
from bamboo_jax.config.gone import GONE
from bamboo_jax.config.section import (
    kinds_of,
    Limits,
    list_options,
    Option,
    option,
    part,
    Section,
    without_none,
)
from bamboo_jax.config.study import DurationsSection, StudySection, TableSection, TraceSection
