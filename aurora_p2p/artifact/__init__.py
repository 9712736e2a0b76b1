"""What is published: immutable, versioned, signed artifacts, their manifests, and the log that keeps them."""
