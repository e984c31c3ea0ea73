"""The controller: InferenceService in, Kubernetes objects out. Knows no torch."""
