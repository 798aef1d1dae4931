"""The environments, policies and devices that a collector is given."""
