"""What every other package may use: errors, names, files."""

from bamboo_jax.base.errors import CheckpointError
from bamboo_jax.base.errors import DataError
from bamboo_jax.base.errors import InfeasibleError
from bamboo_jax.base.errors import PeerLostError
from bamboo_jax.base.errors import StaleProfileError
from bamboo_jax.base.files import write_atomically
from bamboo_jax.base.names import suggest
