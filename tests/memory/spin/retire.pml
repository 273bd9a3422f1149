/* Give back, then reuse (memory/kv_pool.h, memory/step_clock.h), for Spin: a block of a sequence that is over may still be
   read and written by steps under way on any lane. The scheduler sends steps, also ahead, ends sequences meanwhile, and
   gives their blocks to new ones; it publishes blocks, has later sequences read them on either lane, and evicts them.
   Lanes run the steps late, or are killed with a step half done.
   What the scheduler knows of steps (issued, completed) is its own: it changes with the results that it reads, or when it
   has reaped a worker.
   Parameters: NUM_BLOCKS, NUM_SEQUENCES (that take or read a block), MAX_STEPS (of one lane).
   Mistakes: NO_MARKS (a block is free at once), ISSUE_LATE (the mark is taken before the last plan counts as issued),
   OLD_LAST_USE (a lease is given back with the step before its newest), LAST_READER_ONLY (a cached block waits for the
   lease that was given back last, and not for those before it in the line), ANSWER_EARLY (a lane answers before the
   step's last access), NO_REAP (a worker's steps count as over before it has stopped), BELIEVE_WORKERS (a worker may
   write which steps are over, and does). */

#define NUM_LANES 2

#define RUNNING 0
#define DYING 1
#define DEAD 2

/* The front end's. */
byte issued[NUM_LANES];
byte completed[NUM_LANES];
byte until[NUM_BLOCKS * NUM_LANES]; /* the mark that a block waits for */
bit cached[NUM_BLOCKS];
byte name[NUM_BLOCKS];    /* of a cached block: the sequence that wrote it */
byte in_line[NUM_BLOCKS]; /* places of a cached block in the line */
chan line = [NUM_SEQUENCES] of { byte, byte, byte }; /* block, lane, step */

byte worker[NUM_LANES];
byte content[NUM_BLOCKS]; /* the sequence whose keys and values lie there */

chan plans[NUM_LANES] = [2] of { byte, byte, byte, bit, bit }; /* step, block, sequence, whether it begins, or only reads */
chan results[NUM_LANES] = [MAX_STEPS] of { byte };

#define STILL_ALIVE(x) atomic { if :: true -> x :: worker[me] == DYING -> goto dead fi }

proctype Lane(byte me) {
  byte step, block, sequence;
  bit begins, reads;
end_born:
  do
  :: plans[me]?step, block, sequence, begins, reads ->
#ifdef ANSWER_EARLY
    STILL_ALIVE(results[me]!step);
#endif
    STILL_ALIVE(
      if
      :: begins
      :: else -> assert(content[block] == sequence) /* reads what an earlier step wrote */
      fi);
    if
    :: reads
    :: else -> STILL_ALIVE(content[block] = sequence)
    fi;
#ifdef BELIEVE_WORKERS
    if
    :: completed[1 - me] = issued[1 - me]
    :: true
    fi;
#endif
#ifndef ANSWER_EARLY
    STILL_ALIVE(results[me]!step);
#endif
    step = 0; block = 0; sequence = 0; begins = 0; reads = 0
  :: worker[me] == DYING -> goto dead
  od;
dead:
  step = 0; block = 0; sequence = 0; begins = 0; reads = 0;
  worker[me] = DEAD;
end_dead:
  worker[me] == RUNNING; /* a new one */
  goto end_born
}

#define PASSED(b) (completed[0] >= until[(b) * NUM_LANES] && completed[1] >= until[(b) * NUM_LANES + 1])

inline mark_all(b) {
  until[(b) * NUM_LANES] = issued[0];
  until[(b) * NUM_LANES + 1] = issued[1]
}

inline mark_last_use(b) {
  until[(b) * NUM_LANES + lane] = last_step;
  until[(b) * NUM_LANES + 1 - lane] = 0
}

/* One sequence at a time is enough for its successor to meet its steps, and for two to read a block at once. */
proctype Scheduler() {
  byte sequence, block, lane, step, last_step;
  byte next = 1;
  byte kills, late;
  bit running, begun, written, reads;
  do
  :: results[0]?step -> completed[0] = step; step = 0
  :: results[1]?step -> completed[1] = step; step = 0
  :: atomic {
      !running && len(line) > 0 -> /* the first in the line leaves */
      line?<block, lane, step>;
      if
      :: completed[lane] >= step -> line?block, lane, step; in_line[block]--
      :: else
      fi;
      block = 0; lane = 0; step = 0
    }
  :: atomic {
      !running && next <= NUM_SEQUENCES -> /* reserve */
      if
      :: block = 0
      :: block = NUM_BLOCKS - 1
      fi;
      if
      :: cached[block] -> running = 1; reads = 1; begun = 1; sequence = name[block]
      :: cached[block] && in_line[block] == 0 -> cached[block] = 0 /* evicted, and free at once */
#ifdef NO_MARKS
      :: !cached[block] -> running = 1; sequence = next
#else
      :: !cached[block] && PASSED(block) -> running = 1; sequence = next
#endif
      :: else
      fi;
      if
      :: running -> next++
      :: else -> block = 0
      fi
    }
#ifdef ISSUE_LATE
  :: late > 0 -> issued[late - 1]++; late = 0
#endif
  :: running && late == 0 -> /* a step */
    written = written || (begun && last_step <= completed[lane]);
    if
    :: last_step > completed[lane] /* ahead, so on the same lane */
    :: last_step <= completed[lane] -> lane = 0
    :: last_step <= completed[lane] -> lane = 1
    fi;
    if
    :: len(plans[lane]) < 2 && issued[lane] < MAX_STEPS ->
#ifdef ISSUE_LATE
      last_step = issued[lane];
      plans[lane]!(issued[lane] + 1), block, sequence, !begun, reads;
      late = lane + 1;
#else
      issued[lane]++;
      last_step = issued[lane];
      plans[lane]!issued[lane], block, sequence, !begun, reads;
#endif
      begun = 1
    :: else
    fi
  :: running && kills == 0 && last_step > completed[lane] -> /* its worker hangs */
    kills++;
    worker[lane] = DYING;
#ifndef NO_REAP
    worker[lane] == DEAD;
#endif
    atomic {
      do
      :: len(plans[lane]) > 0 -> plans[lane]?_, _, _, _, _
      :: len(results[lane]) > 0 -> results[lane]?_
      :: else -> break
      od;
      completed[lane] = issued[lane]
    };
#ifndef NO_REAP
    worker[lane] = RUNNING;
#endif
    written = 0;
    goto give_back
  :: running ->
give_back:
    atomic {
#ifdef OLD_LAST_USE
      if
      :: last_step > 0 -> last_step--
      :: else
      fi;
#endif
      if
      :: reads ->
#ifdef LAST_READER_ONLY
        do
        :: line??[eval(block), _, _] -> line??eval(block), _, _; in_line[block]--
        :: else -> break
        od;
#endif
        line!block, lane, last_step;
        in_line[block]++
      :: !reads -> mark_last_use(block)
      :: !reads -> mark_all(block) /* the last use was forgotten */
      :: !reads && written -> /* publish */
        cached[block] = 1;
        name[block] = sequence;
        line!block, lane, last_step;
        in_line[block]++
      fi;
      running = 0; begun = 0; written = 0; reads = 0; last_step = 0; block = 0; lane = 0; sequence = 0
    }
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
