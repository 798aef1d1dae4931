"""Next observations rebuilt or stored as differences."""
