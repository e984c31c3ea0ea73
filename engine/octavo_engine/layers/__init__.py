"""The pieces of a decoder. Each owns its weights and names the checkpoint tensors that fill them."""
