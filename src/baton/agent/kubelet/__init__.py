"""The connection to kubelet: registration, life cycle, the device plugin's calls, and kubelet's own records."""
