"""The only room that reads or writes the folder of records."""
