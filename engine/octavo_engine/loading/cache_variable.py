"""The name of the variable with the cache's folder; for those who may import nothing else."""

CACHE_VARIABLE = "OCTAVO_CACHE_DIR"
