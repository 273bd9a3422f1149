/* The wake-ups of a stream's thread team (kernels/cpu/team.cpp), for Spin: a caller posts a part to each helper, does its
   own, takes over the parts that nobody has begun, and waits for the rest; at the end it posts "stop" and joins. Whoever
   waits spins a while, then says that it is asleep, looks once more and sleeps on the word as a futex does. That nobody
   sleeps for good is what Spin's search for invalid end states says.
   Mistakes: CALLER_CLEARS, HELPER_CLEARS (the caller, when it wakes a helper, or a helper, when it wakes the caller,
   clears the sleeper's flag and wakes only if the flag was set: the protocol did both once, and each lost wake-ups by
   itself), NO_SECOND_LOOK (the sleeper does not look between its flag and its sleep, and the futex does not compare),
   WAKE_BEFORE_POST. */

#ifndef NUM_HELPERS
#define NUM_HELPERS 1
#endif
#ifndef RUNS
#define RUNS 2
#endif

byte ticket[NUM_HELPERS]; /* odd: a part is posted */
bit asleep[NUM_HELPERS];
bit futex[NUM_HELPERS]; /* the helper sleeps in the kernel */
byte pending;
bit caller_asleep, caller_futex;
bit stop;
byte ended;

inline wake_helper(h) {
  if
  :: asleep[h] ->
#ifdef CALLER_CLEARS
    if
    :: atomic { asleep[h] -> asleep[h] = 0 }
      futex[h] = 0
    :: atomic { !asleep[h] -> skip }
    fi
#else
    futex[h] = 0
#endif
  :: else
  fi
}

inline post(h) {
#ifdef WAKE_BEFORE_POST
  wake_helper(h);
  ticket[h] = ticket[h] + 1
#else
  ticket[h] = ticket[h] + 1;
  wake_helper(h)
#endif
}

inline wake_caller() {
  if
  :: caller_asleep ->
#ifdef HELPER_CLEARS
    if
    :: atomic { caller_asleep -> caller_asleep = 0 }
      caller_futex = 0
    :: atomic { !caller_asleep -> skip }
    fi
#else
    caller_futex = 0
#endif
  :: else
  fi
}

proctype Helper(byte me) {
  byte value;
wait:
  value = ticket[me];
  if
  :: value % 2 == 1 -> goto claim
  :: value % 2 == 0 -> goto wait_more /* spins in vain */
  fi;
wait_more:
  asleep[me] = 1;
#ifdef NO_SECOND_LOOK
  futex[me] = 1;
#else
  value = ticket[me];
  if
  :: value % 2 == 1 -> goto awake
  :: else
  fi;
  atomic { /* the kernel compares the word and sleeps */
    if
    :: ticket[me] == value -> futex[me] = 1
    :: else
    fi
  }
#endif
  !futex[me];
awake:
  value = ticket[me];
  asleep[me] = 0;
  if
  :: value % 2 == 1
  :: else -> goto wait
  fi;
claim:
  atomic {
    if
    :: ticket[me] == value -> ticket[me] = value + 1
    :: else -> value = 0; goto wait /* the caller was faster */
    fi
  }
  value = 0;
  if
  :: stop -> goto over
  :: else
  fi;
  atomic { pending = pending - 1; value = pending }
  if
  :: value == 0 -> wake_caller()
  :: else
  fi;
  value = 0;
  goto wait;
over:
  ended = ended + 1
}

active proctype Caller() {
  byte turn, h, value;
  atomic { /* the threads start */
    h = 0;
    do
    :: h < NUM_HELPERS -> run Helper(h); h = h + 1
    :: else -> break
    od
  }
  do
  :: turn < RUNS ->
    pending = NUM_HELPERS;
    h = 0;
    do
    :: h < NUM_HELPERS -> post(h); h = h + 1
    :: else -> break
    od;
    h = 0;
    do
    :: h < NUM_HELPERS ->
      value = ticket[h];
      if
      :: value % 2 == 1 ->
        atomic {
          if
          :: ticket[h] == value -> ticket[h] = value + 1; value = 1
          :: else -> value = 0
          fi
        }
        if
        :: value == 1 -> pending = pending - 1
        :: else
        fi
      :: else
      fi;
      h = h + 1
    :: else -> break
    od;
    value = 0;
caller_wait:
    if
    :: pending == 0 -> goto next
    :: pending != 0 /* spins in vain */
    fi;
    caller_asleep = 1;
    value = pending;
    if
    :: value == 0 -> goto caller_awake
    :: else
    fi;
    atomic {
      if
      :: pending == value -> caller_futex = 1
      :: else
      fi
    }
    !caller_futex;
caller_awake:
    value = 0;
    caller_asleep = 0;
    goto caller_wait;
next:
    turn = turn + 1
  :: else -> break
  od;
  stop = 1;
  h = 0;
  do
  :: h < NUM_HELPERS -> post(h); h = h + 1
  :: else -> break
  od;
  ended == NUM_HELPERS; /* join */
  assert(pending == 0)
}
