"""The linear recurrence as a Triton kernel; import `rl_value.triton.linear_scan`."""
