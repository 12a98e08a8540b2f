"""Test on a cluster. A separate session collects these tests, since no other path includes them."""
