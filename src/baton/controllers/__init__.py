"""The controllers behind Volcano's objects, and the admission webhooks.

Each controller keeps one kind of object true: what has to be done is a pure function of what the API server shows, and
a thin shell around it carries that out. `assembly` runs all of them as one program.
"""
