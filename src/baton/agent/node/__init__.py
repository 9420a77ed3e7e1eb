"""The agent's work on its host: files for containers, the lock daemon, and whose process is whose."""
