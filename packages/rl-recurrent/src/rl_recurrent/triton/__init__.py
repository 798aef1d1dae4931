"""Recurrences as Triton kernels; import `rl_recurrent.triton.lstm` or `rl_recurrent.triton.gru`."""
