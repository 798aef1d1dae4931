"""Collectors whose workers are ranks of torch.distributed, started by torchrun or Slurm."""
