"""Jobs and nodes to simulate: public traces, made-up ones, and recorded clusters."""
