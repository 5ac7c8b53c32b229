"""`swift-diloco export`: a model in the transformers format from a syncer's checkpoint alone."""
