"""Executables: what XLA has compiled, kept so that it compiles it once.

A pipeline asks for the same program over and over: for every device that owns
a stage, for its shadow, after every recovery, in every process of a machine, in
every run. XLA takes seconds for each; to load what it made before takes
milliseconds and gives the same bits, on whatever device.

So whenever JAX wants a program compiled, here it is looked up first: by its
key, in the memory of the process, then in a folder that the processes of this
machine share. The call sites know nothing of it: what they trace and lower is
all there is to say.

  key      what a compiled program depends on, in one hash
  folder   entries on disk, for many processes at once
  store    memory in front of the folder; `use` puts it between JAX and XLA

Read `store` first.
"""
