"""Define the existing cells, by scale. These are pure values: nothing is drawn, opened or computed here."""
