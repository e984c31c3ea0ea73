"""The configs that quantising tools write, one module for each kind. No tensors."""
