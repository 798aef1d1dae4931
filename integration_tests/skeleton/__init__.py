"""The whole path as slow, plain twins, each obviously right; later packages are compared with them.

environments -> rows (collector) -> buffer -> slices (sampler) -> gru -> gae -> ppo; what continues
what is read from the markers in segments.
"""
