"""The paper, reproduced: cells (experiments), their records, the training behind them, tables and the report."""
