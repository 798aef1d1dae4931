"""Language models on flat tokens: logits, sampled completions, rollouts, and penalties."""
