"""The parts of a flow that burst workers can run (`segments`), and a graph that shows them (`graph`)."""
