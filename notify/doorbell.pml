/*
 * The doorbell's protocol: writers whose trigger notifies only while the bell
 * is held, and two relays, each with a connection that listens and a main loop
 * that claims, publishes and waits. One of them is the sentinel, which arms and
 * polls. A connection may be lost, and a relay may die with the rows that it
 * has claimed. There is no ticker: while connections live, or come back, the
 * bell alone must see to it that every committed row is published.
 *
 * It starts with both relays listening and the first as the sentinel; the fault
 * happens to the one that VICTIM names, so both are to be checked.
 *
 * Checked are two properties. No wake is lost: never is everybody asleep, with
 * nothing under way, while a row is unpublished (an assertion). And a row that
 * is visible is published in the end, under weak fairness, so that whoever polls
 * gets somewhere (with -DLIVENESS). Each mutant leaves out one thing that the protocol rests on,
 * and must be caught by the first:
 *
 *   -DMUTANT_NO_LOOK          sleep as soon as the bell is armed
 *   -DMUTANT_LOOK_BEFORE_ARM  look first, then arm and sleep
 *   -DMUTANT_CLAIM_AS_LOOK    take "nothing to claim" for "nothing left"
 *   -DMUTANT_LOOK_ONCE        do not look again after a wake
 *   -DMUTANT_EARLY_RELEASE    writers let go of the bell before their commit
 *                             is visible
 *   -DMUTANT_DROP_AFTER_LOOK  forget a pending wake after the look
 *   -DMUTANT_SILENT_DISARM    a release that comes late wakes nobody
 *   -DMUTANT_NO_TAKEOVER      helpers do not try to become the sentinel
 *   -DMUTANT_SILENT_TAKEOVER  becoming the sentinel wakes nobody
 */

#ifndef WRITERS
#define WRITERS 1
#endif
#ifndef ROWS
#define ROWS 1          /* transactions of each writer */
#endif
#ifndef VICTIM
#define VICTIM 0        /* the relay that dies or loses its connection, once */
#endif

#define RELAYS 2
#define NOBODY RELAYS

/* The database. */
byte unpublished = 0;   /* visible rows that are not marked */
byte locked = 0;        /* those of them that a relay has claimed */
byte shared = 0;        /* writers' transactions that hold the bell */
byte bell = NOBODY;     /* who holds it */
byte sentinel = NOBODY; /* who holds the other lock */
bool up[RELAYS];        /* the session of the connection lives and listens */
bool note[RELAYS];      /* a notification is on its way to it */

/* What a relay knows. */
bool dead[RELAYS];
byte claimed[RELAYS];   /* rows */
bool listening[RELAYS], isSentinel[RELAYS], armed[RELAYS];

mtype = { none, notified, other, arm, disarm };
mtype wake[RELAYS] = none;    /* one slot; what is pending stands for more */
mtype request[RELAYS] = none; /* from the main loop to the connection */

inline ring(r, kind) {
	if
	:: wake[r] == none && !dead[r] -> wake[r] = kind
	:: else
	fi
}

/* The end of a session, and of what it holds. */
inline endSession(r) {
	up[r] = false;
	note[r] = false;
	if :: bell == r -> bell = NOBODY :: else fi;
	if :: sentinel == r -> sentinel = NOBODY :: else fi
}

/* Transactions one after the other. A commit makes the row visible first and
 * releases the transaction's locks after that; what it notified goes out last. */
proctype Writer()
{
	byte n = 0;
	bool holds, rings;

	do
	:: n < ROWS ->
		d_step { /* the trigger's try */
			if
			:: bell != NOBODY -> rings = true; holds = false
			:: bell == NOBODY -> rings = false; holds = true; shared++
			fi
		}
#ifdef MUTANT_EARLY_RELEASE
		atomic { if :: holds -> shared--; holds = false :: else fi }
#endif
		if
		:: unpublished++
		:: rings = false /* rolled back, and with it the notification */
		fi;
		d_step { if :: holds -> shared--; holds = false :: else fi }
		d_step {
			if
			:: rings -> note[0] = up[0]; note[1] = up[1]; rings = false
			:: else
			fi;
			n++
		}
	:: else -> break
	od
}

/* At any time or never. */
proctype Fault()
{
	if
	:: d_step {
		up[VICTIM] -> /* the connection is lost */
		endSession(VICTIM)
	}
	:: d_step { /* kill -9; the database rolls back */
		dead[VICTIM] = true;
		endSession(VICTIM);
		locked = locked - claimed[VICTIM];
		claimed[VICTIM] = 0;
		/* Nobody looks at the rest any more. */
		listening[VICTIM] = false; isSentinel[VICTIM] = false; armed[VICTIM] = false;
		wake[VICTIM] = none; request[VICTIM] = none
	}
	:: true
	fi
}

/* The goroutine that owns the listening connection. */
proctype Connection(byte r)
{
	bool connected = true;

	do
	:: dead[r] -> break
	:: !dead[r] && !connected ->
		d_step { /* LISTEN */
			if :: !dead[r] -> up[r] = true :: else fi;
			connected = true
		}
		d_step {
			if
			:: up[r] && sentinel == NOBODY -> sentinel = r; isSentinel[r] = true
			:: else
			fi;
			if
			:: up[r] ->
				listening[r] = true;
				ring(r, other)
			:: else
			fi
		}
	:: connected && !up[r] && !dead[r] -> /* lost */
		d_step {
			connected = false;
			listening[r] = false; isSentinel[r] = false; armed[r] = false;
			request[r] = none;
			ring(r, other)
		}
	:: d_step { connected && note[r] -> note[r] = false; ring(r, notified) }
#ifndef MUTANT_NO_TAKEOVER
	:: d_step { /* a probe */
			connected && up[r] && !isSentinel[r] && sentinel == NOBODY ->
			sentinel = r;
			isSentinel[r] = true;
#ifndef MUTANT_SILENT_TAKEOVER
			ring(r, other)
#endif
		}
#endif
	:: d_step { /* a try, never a wait */
			connected && up[r] && request[r] == arm ->
			if
			:: isSentinel[r] && shared == 0 -> bell = r; armed[r] = true
			:: else
			fi;
			request[r] = none
		}
	:: connected && up[r] && request[r] == disarm ->
		d_step { if :: up[r] && bell == r -> bell = NOBODY :: else fi }
		/* The writers know before the main loop does. */
		d_step {
			if
			:: armed[r] ->
				armed[r] = false;
#ifndef MUTANT_SILENT_DISARM
				ring(r, other)
#endif
			:: else
			fi;
			request[r] = none
		}
	od
}

/* The main loop waits for its request, or loses patience; what is under way
 * then is still carried out. */
inline ask(r, what) {
	request[r] = what;
	if
	:: request[r] == none
	:: true
	:: d_step { request[r] != none -> request[r] = none }
	fi
}

inline claim(r) {
	d_step {
		if
		:: !dead[r] -> claimed[r] = unpublished - locked; locked = locked + claimed[r]
		:: else
		fi
	}
}

/* Marks what Kafka has; found is whether there was anything. */
inline mark(r, found) {
	d_step {
		found = claimed[r] > 0;
		unpublished = unpublished - claimed[r];
		locked = locked - claimed[r];
		claimed[r] = 0
	}
}

proctype Main(byte r)
{
	bool found;

round:
	claim(r);
	atomic {
		mark(r, found);
		if
		:: dead[r] -> goto end
		:: !dead[r] && !listening[r] -> goto round /* polls */
		:: !dead[r] && listening[r] && isSentinel[r] -> goto asSentinel
		:: !dead[r] && listening[r] && !isSentinel[r] -> found = false
		fi
	}

	/* A helper. While the bell is free, writers are silent. */
	if
	:: bell == NOBODY -> goto round
	:: else -> goto sleep
	fi;

asSentinel:
#ifdef MUTANT_LOOK_BEFORE_ARM
	if :: unpublished > 0 -> goto round :: else fi;
#endif
	if
	:: armed[r]
	:: armed[r] -> ask(r, disarm); goto round /* the rate is high */
	:: !armed[r] && !found ->
		ask(r, arm);
		if :: armed[r] :: else -> goto round fi
	:: !armed[r] -> goto round
	fi;
#ifdef MUTANT_LOOK_BEFORE_ARM
	goto recheck;
#endif
look:
#ifdef MUTANT_NO_LOOK
	goto recheck;
#endif
#ifndef MUTANT_DROP_AFTER_LOOK
	atomic { /* what came before the look is answered by it */
		if
		:: wake[r] == other -> wake[r] = none; goto round
		:: else -> wake[r] = none
		fi
	}
#endif
	if
#ifdef MUTANT_CLAIM_AS_LOOK
	:: unpublished - locked > 0 -> goto round
#else
	:: unpublished > 0 -> goto round
#endif
	:: else
	fi;
#ifdef MUTANT_DROP_AFTER_LOOK
	wake[r] = none;
#endif
recheck:
	if :: armed[r] :: else -> goto round fi;
sleep:
	atomic {
		found = false;
		if
		:: dead[r] -> goto end
		:: !dead[r] && wake[r] != none -> wake[r] = none
		fi
	}
#ifdef MUTANT_LOOK_ONCE
	claim(r);
	mark(r, found);
	if :: !dead[r] && isSentinel[r] && armed[r] -> goto sleep :: else fi;
#endif
	goto round;
end:
	request[r] = none
}

init {
	atomic {
		byte i;
		sentinel = 0;
		isSentinel[0] = true;
		for (i : 0 .. RELAYS - 1) {
			up[i] = true;
			listening[i] = true;
			run Connection(i);
			run Main(i)
		}
		for (i : 1 .. WRITERS) { run Writer() }
		run Fault();
		i = 0
	}
}

#ifdef LIVENESS
ltl published { [] (unpublished > 0 -> <> (unpublished == 0)) }
#else
active proctype Quiet()
{
	timeout -> assert(unpublished == 0)
}
#endif
