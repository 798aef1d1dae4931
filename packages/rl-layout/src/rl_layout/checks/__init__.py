"""The layout checker."""
