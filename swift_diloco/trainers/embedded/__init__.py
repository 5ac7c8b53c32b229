"""The syncer that island 0 starts itself: its process, and its life beside the training."""
