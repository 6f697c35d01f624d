# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/report: measuring, tables, plots. Standard library only."""
