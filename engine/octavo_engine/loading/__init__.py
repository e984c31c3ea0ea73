"""From a checkpoint on disk to weights in place: config, tensors' sources, and the checks between."""
