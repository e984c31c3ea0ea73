"""Quantised checkpoints: what their config says, how they store weights, what they do to inputs.

  read_config     quantization_config -> Scheme, refusing what we do not know by name
  scheme          Scheme: which module is stored by which WeightFormat and rounds its inputs how
  gptq, awq, packed, scaled, bitsandbytes, at_load    the weight formats
  inputs          rounding of activations
  zero_points     tells GPTQ's two conventions of zero points from the data
  matrix          QuantizedMatrix: what every format reads into
  products        linear layers that keep such matrices as they are, for the GPU's kernels
  checkpoint      a Scheme applied to one checkpoint's tensors: the loader's and the layers' side

Every format can be dequantised at load: that is its reference, and its path on a CPU.
"""
