"""Plain PyTorch versions of every op, accumulating in float32: oracle of the tests and CPU path.

They take any device, so that a test on a GPU compares with the same code.
"""
