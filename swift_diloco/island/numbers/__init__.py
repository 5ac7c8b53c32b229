"""Compute: anchors, host buffers and the values of the model. They know no link, no file and no brain."""
