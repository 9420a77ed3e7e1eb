"""What the node offers to kubelet: slots of cards, other devices, and which slots a container gets."""
