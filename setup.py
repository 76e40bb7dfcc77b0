"""The packages of the wheel; `setup.cfg` has everything else."""

import setuptools

# Folders that stand beside the library here, and within it once installed:
# their own names are too general for a place that other projects share.
_WITHIN = {
    "bamboo_jax.benchmarks": "benchmarks",
    "bamboo_jax.configs": "configs",
    "bamboo_jax.configs.sim": "configs/sim",
    "bamboo_jax.docs.concepts": "docs/concepts",
    "bamboo_jax.docs.guides": "docs/guides",
    "bamboo_jax.docs.measurements": "docs/measurements",
    "bamboo_jax.docs.reference": "docs/reference",
    "bamboo_jax.docs.research": "docs/research",
    "bamboo_jax.docs.start": "docs/start",
    "bamboo_jax.launch": "launch",
    "bamboo_jax.reproductions": "reproductions",
    "bamboo_jax.reproductions.bamboo": "reproductions/bamboo",
    "bamboo_jax.reproductions.oobleck": "reproductions/oobleck",
    "bamboo_jax.reproductions.paper_models": "reproductions/paper_models",
    "bamboo_jax.third_party.published": "third_party/published",
}

setuptools.setup(
    packages=[*setuptools.find_packages(include=["bamboo_jax", "bamboo_jax.*"]), *_WITHIN],
    package_dir=_WITHIN,
)
