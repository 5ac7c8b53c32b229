"""Compute: anchors, host buffers and the values of the model."""
