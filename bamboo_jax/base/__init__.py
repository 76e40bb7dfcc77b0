"""What every other package may use: errors, names, options, files."""

from bamboo_jax.base.errors import CheckpointError
from bamboo_jax.base.errors import DataError
from bamboo_jax.base.errors import InfeasibleError
from bamboo_jax.base.errors import PeerLostError
from bamboo_jax.base.errors import ReplicaMismatchError
from bamboo_jax.base.errors import StaleProfileError
from bamboo_jax.base.errors import UnrecoverableHereError
from bamboo_jax.base.files import lock_folder
from bamboo_jax.base.files import write_atomically
from bamboo_jax.base.names import suggest
from bamboo_jax.base.options import check_options
from bamboo_jax.base.options import fits
