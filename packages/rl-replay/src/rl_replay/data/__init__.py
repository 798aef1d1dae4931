"""The form of what callers store, and how it becomes rows."""
