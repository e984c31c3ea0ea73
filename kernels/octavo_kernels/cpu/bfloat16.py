"""bfloat16 within numba: memory as 16-bit words, arithmetic in float32."""
