"""Where something could go: room on nodes and cards, network domains, and the victims that would make room."""
