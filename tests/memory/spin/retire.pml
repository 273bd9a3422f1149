/* Retire, then reuse (memory/kv_pool.h), for Spin: a block of a sequence that is over may still be read and written by
   steps in flight on any lane. The scheduler issues steps, cancels sequences meanwhile and gives their blocks to new
   ones; lanes run the steps late, or are killed with a step half done.
   Mistakes: NO_STAMPS (a block is free at once), ISSUE_LATE (the stamp is taken before the last plan counts as issued),
   COMPLETE_EARLY (completed_step is raised before the step's last access), NO_REAP (a worker's steps count as over
   before it has stopped). */

#define NUM_LANES 2
#define NUM_BLOCKS 2
#define NUM_SEQUENCES 3
#define MAX_STEPS 4 /* of one lane */

#define RUNNING 0
#define DYING 1
#define DEAD 2

byte issued[NUM_LANES];
byte completed[NUM_LANES];
byte worker[NUM_LANES];
byte content[NUM_BLOCKS]; /* the sequence whose keys and values lie there */

chan plans[NUM_LANES] = [2] of { byte, byte, byte, bit }; /* step, block, sequence, whether it begins the sequence */

#define STILL_ALIVE(x) atomic { if :: true -> x :: worker[me] == DYING -> goto dead fi }

proctype Lane(byte me) {
  byte step, block, sequence;
  bit begins;
end_born:
  do
  :: plans[me]?step, block, sequence, begins ->
#ifdef COMPLETE_EARLY
    STILL_ALIVE(completed[me] = step);
#endif
    STILL_ALIVE(
      if
      :: begins
      :: else -> assert(content[block] == sequence) /* reads what an earlier step wrote */
      fi);
    STILL_ALIVE(content[block] = sequence);
#ifndef COMPLETE_EARLY
    STILL_ALIVE(completed[me] = step);
#endif
    step = 0; block = 0; sequence = 0; begins = 0
  :: worker[me] == DYING -> goto dead
  od;
dead:
  step = 0; block = 0; sequence = 0; begins = 0;
  worker[me] = DEAD;
end_dead:
  worker[me] == RUNNING; /* a new one */
  goto end_born
}


/* One sequence at a time is enough for its successor to meet it. */
proctype Scheduler() {
  byte sequence, block, lane, i;
  byte stamp[NUM_BLOCKS * NUM_LANES];
  byte next = 1;
  byte kills;
  bit running, begun, ok;
  do
  :: !running && next <= NUM_SEQUENCES -> /* reserve */
    if
    :: block = 0
    :: block = 1
    fi;
    ok = 1;
    i = 0;
    do
    :: i == NUM_LANES -> break
    :: else ->
      if
#ifdef NO_STAMPS
      :: true
#endif
      :: completed[i] < stamp[block * NUM_LANES + i] -> ok = 0
      :: completed[i] >= stamp[block * NUM_LANES + i]
      fi;
      i++
    od;
    i = 0;
    if
    :: ok -> sequence = next; next++; running = 1; begun = 0
    :: else
    fi
  :: running ->
    if
    :: lane = 0
    :: lane = 1
    fi;
    if
    :: issued[lane] < MAX_STEPS && len(plans[lane]) < 2 ->
#ifdef ISSUE_LATE
      plans[lane]!(issued[lane] + 1), block, sequence, !begun;
      d_step {
        for (i : 0 .. NUM_LANES - 1) { stamp[block * NUM_LANES + i] = issued[i] }
        i = 0
      };
      issued[lane]++;
#else
      issued[lane]++;
      plans[lane]!issued[lane], block, sequence, !begun;
#endif
      if
      :: completed[lane] == issued[lane] -> begun = 1 /* its result is here; on with the next step */
      :: goto cancel                                  /* while the step is in flight */
      :: kills == 0 ->                                /* its worker hangs */
        kills++;
        worker[lane] = DYING;
#ifndef NO_REAP
        worker[lane] == DEAD;
#endif
        atomic {
          do
          :: len(plans[lane]) > 0 -> plans[lane]?_, _, _, _
          :: else -> break
          od
        }
        completed[lane] = issued[lane];
#ifndef NO_REAP
        worker[lane] = RUNNING;
#endif
        goto cancel
      fi
    :: else -> goto cancel
    fi
  :: running ->
cancel:
    running = 0;
    begun = 0;
#ifndef ISSUE_LATE
    d_step {
      for (i : 0 .. NUM_LANES - 1) { stamp[block * NUM_LANES + i] = issued[i] }
      i = 0
    }
#endif
  :: next > NUM_SEQUENCES && !running -> break
  od
}

init {
  atomic {
    run Lane(0);
    run Lane(1);
    run Scheduler()
  }
}
