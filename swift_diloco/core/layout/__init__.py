"""Geometry on plain integers: tensors, fragments, boxes and pieces. No arrays, no bytes."""
