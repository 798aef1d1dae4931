"""Losses as tensordict modules, with means over the steps that count."""
