"""What an experiment is: a frozen configuration, with an identity. No file, no device."""
