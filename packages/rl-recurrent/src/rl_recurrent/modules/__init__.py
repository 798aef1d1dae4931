"""Recurrent tensordict modules."""
