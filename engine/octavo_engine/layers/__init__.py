"""The pieces of a decoder. Each owns its weights and names the tensors that fill them."""
