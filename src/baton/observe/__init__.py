"""The shell of every program: signals, leadership, the HTTP server with health and metrics, and the log."""
