"""What is known of a model without running it: shapes over symbolic dims, small contents, cost."""
