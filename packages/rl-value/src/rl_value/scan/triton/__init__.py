"""The linear recurrence as a Triton kernel."""
