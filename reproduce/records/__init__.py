"""Read and write the folder of records. No other package does so."""
