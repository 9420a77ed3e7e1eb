"""What the scheduler writes for users and controllers to read."""
