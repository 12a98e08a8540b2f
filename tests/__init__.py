"""Tests stand in the folders of what they test, one file a module; here is what they share, and what is of all."""
