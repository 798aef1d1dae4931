"""Steps of all running segments at once."""
