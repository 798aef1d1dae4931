"""Running the policy in the environment."""
