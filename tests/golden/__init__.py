"""What the report said, as text, and how that was written down."""
