"""`swift-diloco keygen`: key pairs for encrypted connections."""
