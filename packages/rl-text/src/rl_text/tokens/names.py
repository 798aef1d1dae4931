"""The keys of token batches, in addition to the markers of trajectories."""

from __future__ import annotations

INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
LOSS_MASK = "loss_mask"
GROUP_IDS = "group_ids"
ACTION = "action"
SAMPLE_LOG_PROB = "sample_log_prob"
