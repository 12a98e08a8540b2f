"""Keep the texts of the report for fixed records, and the command that writes them."""
