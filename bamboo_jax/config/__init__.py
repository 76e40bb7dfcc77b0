"""The options of a run: typed, frozen and checked.

  section        a section of options, and what checks it
  config         all options, and what does not fit together
  work           what is trained, how it is spread, what follows a death
  surroundings   planning, updates, the cluster, prices and logs

`Config.read` makes them from the `ConfigDict` of a config file. Packages below
`train` take plain arguments and do not know of them.
"""

from bamboo_jax.config.config import Config
from bamboo_jax.config.section import help_of
from bamboo_jax.config.section import is_section
from bamboo_jax.config.section import kinds_of
from bamboo_jax.config.section import Section
from bamboo_jax.config.section import without_none
