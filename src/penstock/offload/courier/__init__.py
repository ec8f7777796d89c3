"""The courier's part: roads past burst workers, where rows are given away and what comes of them taken in."""
