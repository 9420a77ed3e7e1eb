"""The vocabulary that every part of Baton shares: ids, names, typed Kubernetes and Volcano objects, quantities, times.

Pure: nothing here imports a library that does I/O.
"""
