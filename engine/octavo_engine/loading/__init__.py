"""From a checkpoint on disk to weights in place: config, sources, and the checks between."""
