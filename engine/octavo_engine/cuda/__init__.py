"""The runner of a GPU: decode steps as captured graphs over fixed buffers, the rest eagerly."""
