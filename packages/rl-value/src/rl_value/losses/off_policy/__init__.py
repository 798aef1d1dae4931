"""Losses of an actor and critics of actions, from steps of any policy."""
