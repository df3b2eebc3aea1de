#!/bin/sh
# Checks the protocol in doorbell.pml, which must hold, and each of its mutants,
# which must not: a property that cannot fail shows nothing. Needs spin and gcc.
set -eu
model=$(cd "$(dirname "$0")" && pwd)/doorbell.pml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# errors FLAGS...: prints the number of errors that spin finds.
errors() {
	spin -a "$@" "$model" >spin.log || { cat spin.log >&2; exit 1; }
	gcc -O2 -DNFAIR=3 -o pan pan.c
	./pan -a -f -m100000 | sed -n 's/.*errors: \([0-9]*\).*/\1/p'
}

found=$(errors)
[ "$found" = 0 ] || { echo "the protocol loses a wake" >&2; exit 1; }
echo "protocol: no wake is lost"
for mutant in $(grep -o 'DMUTANT_[A-Z_]*' "$model" | sort -u); do
	found=$(errors "-$mutant")
	[ "$found" != 0 ] || { echo "$mutant passes, but must not" >&2; exit 1; }
	echo "$mutant: caught"
done
