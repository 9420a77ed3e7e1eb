"""What Baton puts into a cluster, custom resources and manifests, and how it is applied."""
