"""Parts of attention patterns: heads, scores, masks, and when fusing pays."""
