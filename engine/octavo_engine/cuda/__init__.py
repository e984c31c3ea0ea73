"""The runner of a GPU: captured decode steps over fixed buffers, eager steps for everything else."""
