"""Kubelet's wire messages, generated from the `.proto` files beside this one (`python -m baton.agent.proto`).

The files were written from the public field tables of kubelet's APIs. Upstream calls all of them `api.proto` and gives
two of them the package `v1`; Python has one descriptor pool per process, so each has a file path of its own here. Only
messages are generated: the few methods are named by hand where they are called and served.
"""
