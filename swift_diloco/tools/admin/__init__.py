"""`swift-diloco admin` and `status`: orders to a running syncer, and what it does."""
