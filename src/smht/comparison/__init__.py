"""Models to compare with, and comparisons at equal budgets."""
