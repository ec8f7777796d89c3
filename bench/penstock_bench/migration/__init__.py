"""`penstock bench migration`: how state follows slots that change hands."""
