"""The command line, one module per command.

- `main`: the table of commands
- `output`, `progress`, `sizes`: what all commands share; `output` states the conventions
- `machine/`: commands for one machine
- `cluster/`: commands for Kubernetes
- `programs/`: commands that run a long-lived program
- `vcctl/`: Volcano's own command line
- `sim`, `doctor`, `version`: commands that belong to none of these
"""
