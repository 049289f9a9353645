"""Parts of attention patterns: heads, scores and masks; and the profitability of fusion."""
