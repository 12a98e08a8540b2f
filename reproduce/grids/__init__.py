"""The cells that there are, by scale. Pure values: nothing is drawn, opened or computed here."""
