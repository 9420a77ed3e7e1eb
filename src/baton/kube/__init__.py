"""The Kubernetes client: requests, credentials, watches, stores, work queues, elections and events."""
