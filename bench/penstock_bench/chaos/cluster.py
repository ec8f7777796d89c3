from contextlib import contextmanager
@contextmanager
def cluster_ground(arena):
    yield None
