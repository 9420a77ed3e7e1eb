"""The objects of an installation and how they are applied to a cluster.

- `crds/`: the custom resource definitions, as Python
- `manifests/`: everything else, as YAML
- `apply`: server-side apply of both
"""
