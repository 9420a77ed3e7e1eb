"""The node agent: a kubelet device plugin that gives every container its cards, its hook and its limits."""
