"""`swift-diloco audit`: what the event tape proves."""
