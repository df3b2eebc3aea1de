/*
 * The doorbell's protocol: writers whose trigger notifies only while the bell
 * is held, a sentinel that arms and polls, and another relay that takes rows
 * and may fail without a sound. There is no ticker here: while connections
 * live, the bell alone must see to it that every committed row is published.
 *
 * Checked: a row that is visible and unpublished is published in the end, under
 * weak fairness. Each mutant leaves out one thing that the protocol rests on,
 * and must be caught:
 *
 *   -DMUTANT_NO_LOOK          sleep as soon as the bell is armed
 *   -DMUTANT_LOOK_BEFORE_ARM  look first, then arm and sleep
 *   -DMUTANT_CLAIM_AS_LOOK    take "nothing to claim" for "nothing left"
 *   -DMUTANT_LOOK_ONCE        do not look again after a wake
 *   -DMUTANT_EARLY_RELEASE    writers let go of the bell before their commit
 *                             is visible
 *   -DMUTANT_DROP_AFTER_LOOK  forget a pending wake after the look
 */

#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef ROWS
#define ROWS 2          /* transactions of each writer */
#endif

byte unpublished = 0;   /* visible rows that are not marked */
byte locked = 0;        /* those of them that the other relay holds */
byte shared = 0;        /* writers' transactions that hold the bell */
bool armed = false;     /* the sentinel holds it */
bool wake = false;      /* one slot: a notification arrived */

#ifndef TAKES
#define TAKES 2         /* rows that the other relay takes */
#endif

#define claimable (unpublished - locked)

/* Transactions one after the other. A commit makes the row visible first and
 * releases the transaction's locks after that; what it notified goes out last. */
proctype Writer()
{
	byte n = 0;
	bool holds, rings;

	do
	:: n < ROWS ->
		atomic { /* the trigger's try */
			if
			:: armed  -> rings = true;  holds = false
			:: !armed -> rings = false; holds = true; shared++
			fi
		}
#ifdef MUTANT_EARLY_RELEASE
		atomic { if :: holds -> shared--; holds = false :: else fi }
#endif
		if
		:: unpublished++
		:: rings = false /* rolled back, and with it the notification */
		fi;
		atomic { if :: holds -> shared-- :: else fi }
		if
		:: rings -> wake = true
		:: else
		fi;
		n++
	:: else -> break
	od
}

/* Another relay: it takes a row that is free, and publishes it or fails. */
proctype Other()
{
	byte n = 0;

	do
	:: n < TAKES && claimable > 0 ->
		atomic { if :: claimable > 0 -> locked++ :: else -> goto next fi }
		atomic {
			if
			:: locked--; unpublished--
			:: locked--
			fi
		}
next:		n++
	:: n == TAKES -> break
	:: unpublished == 0 -> break /* it need not take anything */
	od
}

proctype Sentinel()
{
poll:
	atomic { unpublished = locked } /* claim, publish, mark what is free */
	if
	:: armed ->
		if
		:: skip
		:: armed = false; goto poll /* the rate is high */
		fi
	:: else ->
#ifdef MUTANT_LOOK_BEFORE_ARM
		if
		:: unpublished > 0 -> goto poll
		:: else
		fi;
#endif
		if
		:: atomic { shared == 0 -> armed = true } /* a try, never a wait */
		:: goto poll
		fi
#ifdef MUTANT_LOOK_BEFORE_ARM
		;
		goto sleep
#endif
	fi;
look:
#ifdef MUTANT_NO_LOOK
	goto sleep;
#endif
#ifndef MUTANT_DROP_AFTER_LOOK
	wake = false; /* what came before the look is answered by it */
#endif
	if
#ifdef MUTANT_CLAIM_AS_LOOK
	:: claimable > 0 -> goto poll
#else
	:: unpublished > 0 -> goto poll
#endif
	:: else
	fi;
#ifdef MUTANT_DROP_AFTER_LOOK
	wake = false;
#endif
sleep:
	wake;
	wake = false;
	atomic { unpublished = locked }
#ifdef MUTANT_LOOK_ONCE
	;
	goto sleep;
#endif
	goto look
}

init {
	atomic {
		byte i;
		for (i : 1 .. WRITERS) { run Writer() }
		run Other();
		run Sentinel()
	}
}

ltl published { [] (unpublished > 0 -> <> (unpublished == 0)) }
