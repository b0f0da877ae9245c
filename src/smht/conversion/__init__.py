"""From a dense run to a split one, and back."""
