"""What losses of action values are made of: targets, critics, values of states, a temperature."""
