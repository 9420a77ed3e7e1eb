"""What is defaulted and what is refused, one module per kind of object."""
