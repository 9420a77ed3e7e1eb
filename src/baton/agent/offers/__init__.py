"""What the node offers to kubelet: slots of cards devices of other vendors, and which of them a container gets."""
