"""The process that holds the global parameters and takes the outer steps. Imports nothing of torch or of a trainer."""
