"""StepBudget: how long the store's threads may compute beside one step."""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_THREAD_CPUTIME_ID, clock_gettime, nanosleep, timespec

cdef extern from *:
    """
    #define oe_read(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
    #define oe_write(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
    """
    int64_t oe_read(int64_t *at) nogil
    void oe_write(int64_t *at, int64_t value) nogil

STEP_SECONDS = 0.0003  # CPU time beside one step: Linux may leave a thread a CPU until the next tick, for 4 ms
cdef double _STEP_SECONDS = STEP_SECONDS
cdef long POLL_NANOSECONDS = 5_000_000  # between looks whether a step has begun: so the engine need not wake anyone
cdef double LONGEST_WAIT = 1.0  # seconds; beside a step that takes longer, a thread may compute once more


cdef void charge_with(Share *share, double *counted, double cpu_time) noexcept nogil:
    share.left -= cpu_time - counted[0]
    counted[0] = cpu_time


cdef bint nothing_left(Steps *steps, Share *share, double *counted, double cpu_time) noexcept nogil:
    """Whether a thread that has used so much CPU time waits for the next step. Notes a step that is new.

    `counted`: of its CPU time, what the share was charged with.
    """
    cdef int64_t begun = oe_read(&steps.begun)
    charge_with(share, counted, cpu_time)
    if oe_read(&steps.held):
        return True
    if begun != share.seen:
        share.seen, share.left = begun, _STEP_SECONDS
        return False
    return begun != 0 and share.left <= 0


cdef double thread_cpu_time() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec


cdef void charge(Share *share, double *counted) noexcept nogil:
    """Take what this thread has computed since from the share."""
    charge_with(share, counted, thread_cpu_time())


cdef void give_way(Steps *steps, Share *share, double *counted) noexcept nogil:
    """Wait for the next step where these threads have computed for long enough beside this one."""
    cdef double waited = 0
    cdef timespec poll
    poll.tv_sec, poll.tv_nsec = 0, POLL_NANOSECONDS
    while nothing_left(steps, share, counted, thread_cpu_time()):
        if waited >= steps.longest_wait:
            share.seen, share.left = oe_read(&steps.begun), _STEP_SECONDS
            return
        nanosleep(&poll, NULL)
        waited += 1e-9 * POLL_NANOSECONDS


cdef class StepBudget:
    """The engine's thread says when steps begin and end; the store's writer calls `pause` between pieces of its work.

    What its thread of C does counts, too (`block_writer`).
    """

    def __cinit__(self, *, double longest_wait=LONGEST_WAIT):
        """`longest_wait` in seconds, of one pause."""
        self.steps = Steps(0, 0, longest_wait)
        self.share = Share(0, 0.0)
        self.counted = 0

    def hold(self):
        """The engine's thread copies: others wait until the step behind that begins."""
        oe_write(&self.steps.held, 1)

    def next_step(self):
        """Another step begins."""
        oe_write(&self.steps.begun, self.steps.begun + 1)
        oe_write(&self.steps.held, 0)

    def no_steps(self):
        """Nothing computes any more."""
        oe_write(&self.steps.begun, 0)
        oe_write(&self.steps.held, 0)

    def nothing_left(self, double cpu_time) -> bool:
        """Whether the calling thread, which has used so many seconds of CPU time, waits for the next step."""
        return nothing_left(&self.steps, &self.share, &self.counted, cpu_time)

    def pause(self):
        """Wait for the next step where the calling thread has computed for long enough beside this one."""
        with nogil:
            give_way(&self.steps, &self.share, &self.counted)
