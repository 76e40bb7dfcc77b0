"""Which device, and which software, the other checks are about."""

import platform

import jax
import jaxlib
import pytest

from tests.gpu import child


def check_device(settings):
  """Finds what there is; a problem if a GPU is needed and there is none."""
  device = jax.devices()[0]
  values = {
      "platform": device.platform,
      "kind": device.device_kind,
      "num_devices": len(jax.devices()),
      "memories": [m.kind for m in device.addressable_memories()],
      "runtime": " ".join(device.client.platform_version.split()),
      "jax": jax.__version__,
      "jaxlib": jaxlib.__version__,
      "python": platform.python_version(),
  }
  problems = []
  if settings.needs_gpu and device.platform == "cpu":
    problems.append(
        "JAX sees no GPU; install the extra cuda12 or cuda13 of this package, "
        "or use --smoke to try the checks themselves on small sizes"
    )
  return child.Found(values, problems)


@pytest.mark.gpu
def test_device(run_alone, report):
  found = run_alone(check_device)
  if found.problems:
    pytest.exit(found.problems[0], returncode=1)
  report(found)
