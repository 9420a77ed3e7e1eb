"""The device plugin's side of kubelet: registration, life cycle, the calls, and kubelet's own records."""
