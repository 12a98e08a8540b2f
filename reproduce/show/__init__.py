"""How anything looks: statistics, tables, drawings. It knows no record."""
