"""The courier's side: sends rows to burst workers, and takes in their answers."""
