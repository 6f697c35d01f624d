"""The parts of bench/report: measuring, tables, plots. Standard library only."""
