"""Checkpoints: state on disk that any partition, cluster or process can load.

A checkpoint is keyed by layer. Each member of the run writes the stages that it
hosts, while training goes on; one joins the parts. A kill at any moment leaves
the newest complete checkpoint as it was.

  writer      the protocol of a save: start here
  parts       the division of work, and the reports of members (pure)
  identity    whether a checkpoint is of this run
  folder      all checkpoints of a run: keeps the newest, removes the rest
  places      where they are: in a folder, or in a bucket
  manifest    names and contents of checkpoints
  contents    arrays of layers in directories, by Orbax; finds damage
  arrays      the state of a layer as named arrays in host memory; hashes, to compare runs
"""
