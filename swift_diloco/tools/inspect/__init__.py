"""`swift-diloco inspect`: what a trainer checkpoint stands on."""
