"""The controllers of Volcano's objects.

Each controller reconciles one kind of object: a pure function of what the API server shows decides, and a thin class
around it carries the decision out. `program` runs all controllers as one program.
"""
