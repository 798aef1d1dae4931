"""Parameters and layers."""
