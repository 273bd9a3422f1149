/* The protocol of memory/ledger.h, for Spin: every interleaving of its holders' loads, stores and compare-and-swaps,
   with a death possible before each of them. model_check.py runs it, also with each of the planted mistakes below.

   A step below is one access to shared memory. What only one process may touch at that time (a word that is not free,
   by its holder) is read and written in one step. Left out: generations, the hint, and what a holder remembers as free.
   They only choose among free words or make a compare-and-swap fail, so without them more can happen, not less.
   Whoever takes over from a dead holder acts under its number, so it is the holder's next life here.

   Parameters: NUM_HOLDERS, NUM_BLOCKS (1 to 3), TURNS (reservations per holder, over its lives), NUM_MORTALS (so many of
   the holders may die), MAX_DEATHS (of each).
   Mistakes: EARLY_REFUND, LATE_CONFIRM, NO_CONFIRM, IGNORE_CONFIRMED, CONFIRMED_FIRST, ONE_SLOT, CLAIM_BY_STORE,
   CLAIM_FIRST, FORGET_UNCLAIMED. */

#define NOBODY 15
#define FREE 0
#define HELD 1
#define RETIRING 2
#define PUBLISHED 3

/* The budget word. */
byte budget_blocks = NUM_BLOCKS;
byte budget_holder = NOBODY;
byte budget_operation;
byte confirmed[NUM_HOLDERS]; /* of the journals; what only the holder touches is in its process */
/* The words. */
byte state[NUM_BLOCKS];
byte owner[NUM_BLOCKS];

/* What is true, whatever the ledger says. */
byte taken[NUM_HOLDERS]; /* budget, changed with the budget word */
byte lease[NUM_BLOCKS];  /* 1 + the holder that may use the block, from its claim until it is free */
byte finished;

#define STEP(x) atomic { if :: true -> x :: deaths < MAX_DEATHS -> deaths++; goto born fi }

#ifdef ONE_SLOT
#define SLOT 0
#else
#define SLOT (op % 2)
#endif

inline load_budget() {
  STEP(seen_blocks = budget_blocks; seen_holder = budget_holder; seen_operation = budget_operation)
}

inline begin(in_hand_after) {
  STEP(op++; before[SLOT] = in_hand);
  STEP(after[SLOT] = in_hand_after);
  STEP(operation = op)
}

inline confirm() {
#ifdef NO_CONFIRM
  skip
#else
  if
  :: confirm_holder < NUM_HOLDERS && confirm_holder != me ->
    STEP(seen_confirmed = confirmed[confirm_holder]);
    do
    :: confirm_operation > seen_confirmed ->
      STEP(
        if
        :: confirmed[confirm_holder] == seen_confirmed ->
          confirmed[confirm_holder] = confirm_operation;
          seen_confirmed = confirm_operation
        :: else -> seen_confirmed = confirmed[confirm_holder]
        fi)
    :: else -> break
    od;
    seen_confirmed = 0
  :: else
  fi
#endif
}

/* Tries to put `to` on the budget word in the place of what was seen there; happened: whether it did. */
inline swap_budget(to, in_hand_after) {
  confirm_holder = seen_holder;
  confirm_operation = seen_operation;
#ifndef LATE_CONFIRM
  confirm();
#endif
  STEP(
    if
    :: budget_blocks == seen_blocks && budget_holder == seen_holder && budget_operation == seen_operation ->
      taken[me] = taken[me] + budget_blocks - (to);
      budget_blocks = to;
      budget_holder = me;
      budget_operation = op;
      happened = 1
    :: else ->
      seen_blocks = budget_blocks;
      seen_holder = budget_holder;
      seen_operation = budget_operation;
      happened = 0
    fi);
#ifdef LATE_CONFIRM
  if
  :: happened -> confirm()
  :: else
  fi;
#endif
  if
  :: happened -> in_hand = in_hand_after
  :: else
  fi
}

inline spend() {
  load_budget();
  happened = 0;
  if
  :: seen_blocks < n
  :: else ->
    begin(in_hand + n);
    do
    :: happened || seen_blocks < n -> break
    :: else -> swap_budget(seen_blocks - n, in_hand + n)
    od
  fi
}

inline refund() {
  if
  :: n == 0
  :: else ->
    load_budget();
    begin(in_hand - n);
    happened = 0;
    do
    :: happened -> break
    :: else ->
      assert(seen_blocks + n <= NUM_BLOCKS);
      swap_budget(seen_blocks + n, in_hand - n)
    od
  fi
}

/* Waits where the code would go round: a claim that finds no word ends as a stuck state. */
inline claim() {
  do
  :: n == 0 -> break
  :: else ->
    atomic {
      if
      :: state[0] == FREE -> i = 0
#if NUM_BLOCKS > 1
      :: state[1] == FREE -> i = 1
#endif
#if NUM_BLOCKS > 2
      :: state[2] == FREE -> i = 2
#endif
      :: deaths < MAX_DEATHS -> deaths++; goto born
      fi
    }
    STEP(
      if
#ifdef CLAIM_BY_STORE
      :: true ->
#else
      :: state[i] == FREE ->
#endif
        assert(lease[i] == 0);
        lease[i] = me + 1;
        state[i] = HELD;
        owner[i] = me;
        mine[i] = HELD;
        n--
#ifndef CLAIM_BY_STORE
      :: else
#endif
      fi)
  od;
  i = 0
}

/* Marks all blocks that are `from` as `to`; n: how many they were. */
inline mark(from, to) {
  n = 0;
  i = 0;
  do
  :: i == NUM_BLOCKS -> break
  :: else ->
    if
    :: mine[i] == from ->
      n++;
      STEP(
        assert(state[i] != FREE && owner[i] == me);
        state[i] = to;
        mine[i] = to;
        if
        :: to == FREE -> lease[i] = 0
        :: else
        fi)
    :: else
    fi;
    i++
  od;
  i = 0
}

inline count(from) {
  n = 0;
  for (i : 0 .. NUM_BLOCKS - 1) {
    if
    :: mine[i] == from -> n++
    :: else
    fi
  }
  i = 0
}

inline release(from) {
#ifdef EARLY_REFUND
  d_step { count(from) }
  refund();
  mark(from, FREE);
  n = 0
#else
  mark(from, FREE);
  refund();
  n = 0
#endif
}

inline forget_everything() {
  d_step {
    op = 0; in_hand = 0; n = 0; happened = 0;
    seen_blocks = 0; seen_holder = 0; seen_operation = 0;
    confirm_holder = 0; confirm_operation = 0; seen_confirmed = 0;
    for (i : 0 .. NUM_BLOCKS - 1) { mine[i] = FREE }
    i = 0
  }
}

inline load_confirmed() { STEP(seen_confirmed = confirmed[me]) }

/* LedgerHolder::resume(). Holder 0 keeps what it had published. */
inline resume() {
#ifdef CONFIRMED_FIRST
  load_confirmed();
  load_budget();
  STEP(op = operation);
#else
  load_budget();
  STEP(op = operation);
  load_confirmed();
#endif
#ifdef IGNORE_CONFIRMED
  happened = seen_holder == me && seen_operation == op;
#else
  happened = (seen_holder == me && seen_operation == op) || seen_confirmed == op;
#endif
  seen_confirmed = 0;
  STEP(
    if
    :: happened -> in_hand = after[SLOT]
    :: else -> in_hand = before[SLOT]
    fi);
  assert(in_hand == taken[me]);
  n = in_hand;
  i = 0;
  do
  :: i == NUM_BLOCKS -> break
  :: else ->
    STEP(
      if
      :: state[i] != FREE && owner[i] == me ->
        assert(n > 0);
        n--;
        mine[i] = (state[i] == PUBLISHED && me == 0 -> PUBLISHED : HELD)
      :: else
      fi);
    i++
  od;
  i = 0;
  unclaimed = n;
  mark(HELD, RETIRING);
  n = unclaimed;
  unclaimed = 0;
#ifndef FORGET_UNCLAIMED
  refund();
#endif
  n = 0
}

inline check_that_all_is_there() {
  n = 0;
  for (i : 0 .. NUM_BLOCKS - 1) {
    if
    :: state[i] == FREE -> assert(lease[i] == 0); n++
    :: else -> assert(lease[i] == owner[i] + 1); taken[owner[i]]--
    fi
  }
  assert(n == budget_blocks);
  for (i : 0 .. NUM_HOLDERS - 1) { assert(taken[i] == 0) }
  i = 0
}

proctype Holder(byte me) {
  /* Outlive a life of the holder; before, after, operation: its journal. */
  byte turns = TURNS;
  byte deaths = (me < NUM_MORTALS -> 0 : MAX_DEATHS);
  byte operation;
  byte before[2];
  byte after[2];
  /* Do not. */
  byte op, in_hand, n, i, unclaimed;
  bit happened;
  byte seen_blocks, seen_holder, seen_operation, confirm_holder, confirm_operation, seen_confirmed;
  byte mine[NUM_BLOCKS];

born:
  forget_everything();
  resume();
  do
  :: turns > 0 ->
    turns--;
    if
    :: n = 1
#if NUM_BLOCKS > 1
    :: n = 2
#endif
    fi;
#ifdef CLAIM_FIRST
    if
    :: budget_blocks >= n -> unclaimed = n; claim(); n = unclaimed; unclaimed = 0; spend()
    :: else
    fi;
#else
    spend();
    if
    :: happened -> claim()
    :: else
    fi;
#endif
    n = 0;
    happened = 0
  :: d_step { count(HELD); happened = n > 0; n = 0 }
    if
    :: happened ->
      if
      :: release(HELD)          /* nothing is in flight */
      :: mark(HELD, RETIRING); n = 0
      :: me == 0 -> mark(HELD, PUBLISHED); n = 0
      fi
    :: else
    fi;
    happened = 0
  :: d_step { count(RETIRING); happened = n > 0; n = 0 }
    if
    :: happened -> release(RETIRING)
    :: else
    fi;
    happened = 0
  :: me == 0 ->
    d_step { count(PUBLISHED); happened = n > 0; n = 0 }
    if
    :: happened -> release(PUBLISHED) /* evicted */
    :: else
    fi;
    happened = 0
  :: turns == 0 -> break        /* ends with what it has */
  od;
  atomic {
    finished++;
    if
    :: finished == NUM_HOLDERS -> check_that_all_is_there()
    :: else
    fi
  }
}

init {
  byte i;
  atomic {
    for (i : 0 .. NUM_HOLDERS - 1) { run Holder(i) }
  }
}
