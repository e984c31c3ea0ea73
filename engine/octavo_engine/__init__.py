"""The paged-attention engine and its OpenAI server. Knows no Kubernetes."""
