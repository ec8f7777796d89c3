"""What of a flow can go to burst workers (`segments`), and a graph that shows it (`graph`)."""
