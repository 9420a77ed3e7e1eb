"""The command line, one module per noun. `main` holds the table of commands; `output` the conventions."""
