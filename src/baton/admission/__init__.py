"""The admission webhooks: defaults and checks for Volcano's objects and for pods with GPUs."""
