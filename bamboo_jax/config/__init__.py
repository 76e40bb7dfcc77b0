"""The options of a run: typed, frozen and checked.

  section        a section of options, and what checks it; options of earlier versions,
                 and what to use instead
  config         all options, and what does not fit together

`Config.read` makes them from the `ConfigDict` of a config file. Packages above
take the sections that they obey.
"""

from bamboo_jax.config.config import (
    ClusterSection,
    Config,
    CostSection,
    DurationsSection,
    OptimizerSection,
    PipelineSection,
    RecoverySection,
    RedundancySection,
    StudySection,
    TableSection,
    TraceSection,
)
from bamboo_jax.config.section import (
    GONE,
    kinds_of,
    Limits,
    list_options,
    Option,
    option,
    part,
    Section,
    without_none,
)
