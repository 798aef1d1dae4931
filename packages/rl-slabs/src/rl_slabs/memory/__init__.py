"""Private, shared and mapped memory."""
