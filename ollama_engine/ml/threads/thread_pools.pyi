import logging

log: logging.Logger

class ThreadPool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class ThreadPools: ...
