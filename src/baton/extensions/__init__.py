"""What users add to Baton without changing it, and how it is found and loaded."""
