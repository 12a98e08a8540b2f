"""Define experiments as frozen configurations with identities. This package opens no files and uses no devices."""
