"""What a queue may take, and which jobs are admitted into it."""
