"""What the report says: one module for each table, figure or study."""
