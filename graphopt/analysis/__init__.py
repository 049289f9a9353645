"""Static analysis: shapes over symbolic dims, small contents, cost."""
