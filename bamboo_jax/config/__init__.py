"""The options of a run: typed, frozen and checked.

`Config.read` makes them from the `ConfigDict` of a config file. Packages below
`train` take plain arguments and do not know of them.
"""

from bamboo_jax.config.config import Config
from bamboo_jax.config.section import help_of
from bamboo_jax.config.section import is_section
from bamboo_jax.config.section import kinds_of
from bamboo_jax.config.section import Section
from bamboo_jax.config.section import without_none
