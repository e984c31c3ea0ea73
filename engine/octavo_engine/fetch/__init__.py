"""Brings a model's files to a folder, whole and checked: what a pod does before it serves."""
