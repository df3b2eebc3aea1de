#!/bin/sh
# Checks the protocol in doorbell.pml, which must hold, and each of its mutants,
# which must not: a property that cannot fail shows nothing. Needs spin and gcc.
# The default takes a minute; SIZE="-DWRITERS=2 -DROWS=2" has more transactions,
# and takes hours.
set -eu
model=$(cd "$(dirname "$0")" && pwd)/doorbell.pml
size=${SIZE:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# errors COMPILER RUN FLAGS...: prints the number of errors that spin finds.
errors() {
	compiler=$1 run=$2
	shift 2
	spin -a "$@" "$model" >spin.log || { cat spin.log >&2; exit 1; }
	# shellcheck disable=SC2086 # lists of options
	gcc -O2 -w $compiler -o pan pan.c && ./pan $run -m1000000 >pan.log
	grep -q 'max search depth too small' pan.log && { echo "the search was cut short" >&2; exit 1; }
	sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log
}

lost() { errors -DSAFETY -E "$@"; }
stuck() { errors -DNFAIR=3 '-a -f' -DLIVENESS "$@"; }

for victim in 0 1; do
	# shellcheck disable=SC2086
	[ "$(lost $size -DVICTIM=$victim)" = 0 ] || { echo "the protocol loses a wake (relay $victim fails)" >&2; exit 1; }
	[ "$(stuck -DVICTIM=$victim)" = 0 ] || { echo "the protocol gets stuck (relay $victim fails)" >&2; exit 1; }
	echo "protocol: no wake is lost when relay $victim fails or none does"
done
for mutant in $(grep -o 'DMUTANT_[A-Z_]*' "$model" | sort -u); do
	caught=
	for victim in 1 0; do # fewer states first
		# shellcheck disable=SC2086
		[ "$(lost $size -DVICTIM=$victim "-$mutant")" = 0 ] || { caught=yes; break; }
	done
	[ -n "$caught" ] || { echo "$mutant passes, but must not" >&2; exit 1; }
	echo "$mutant: caught"
done
