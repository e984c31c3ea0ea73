"""Runs batches on a device: request table, inputs, pages, one step after the other."""
