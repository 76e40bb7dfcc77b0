"""Bamboo's table of BERT-Large on preemptible nodes, by its artifact's rules.

10,000 runs per policy: `--config.num_seeds=10000`. The tables are in
`docs/research/published.md`.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  return config_dict.create(
      experiment="bamboo_artifact",
      model="BERT",  # A key of `bamboo_artifact.MODELS`.
      # The rules with the artifact's step times, and with those that were
      # fitted to the published table (BERT only).
      policies=("artifact_bamboo_raw", "bamboo"),
      preemption_probabilities=(0.01, 0.05, 0.10, 0.25, 0.50),  # Per hour.
      num_seeds=1000,  # Runs of each policy with each probability.
      first_seed=0,
      latencies=dict(
          creation_secs=45.0,  # Until a new node is ready.
          reconfigure_secs=config_dict.placeholder(float),  # None: the model's.
          restart_secs=30.0,  # After a fatal failure.
      ),
      on_demand_nodes=32,  # Nodes of the on-demand run.
  )
