"""What a program tells about itself: health, readiness, metrics."""
