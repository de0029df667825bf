package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// orders is how many orders of events are tried with a part left out: the rest may
// still fail, only not with the delays that were drawn first.
const orders = 6

// fails simulates a case, and returns the reason of its failure and its parts. reason
// is empty if it did not fail.
type fails func(c simCase) (reason string, parts []string)

// shrinkCase prints the smallest case that it finds which fails as c does.
func shrinkCase(ctx context.Context, b *binary, c simCase) error {
	tries := 0
	small, reason, parts, err := shrink(c, func(c simCase) (string, []string) {
		tries++
		say("try %d: without %s", tries, strings.Join(c.Without, ","))
		if ctx.Err() != nil {
			return "", nil
		}
		x := b.process(ctx, c, 1)
		switch {
		case len(x.results) > 0:
			return x.results[0].Failure, x.results[0].Parts
		case x.err != nil:
			return "the process ended: " + x.other, nil
		}
		return "", nil
	})
	say("")
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(reason, "\n")
	fmt.Printf("seed %d: FAILED: %s\n%d tries; what is left: %s\n%s\n", c.Seed, first, tries, strings.Join(parts, ", "), small.again())
	return errFailed
}

// shrink leaves out the parts of a case, one after the other, while it fails for the
// same reason, in this or another order of events.
func shrink(c simCase, try fails) (small simCase, reason string, parts []string, err error) {
	reason, parts = try(c)
	if reason == "" {
		return c, "", nil, fmt.Errorf("seed %d does not fail", c.Seed)
	}
	same := func(other string) bool { return alike(other) == alike(reason) }
	for again := true; again; {
		again = false
		for i := len(parts) - 1; i >= 0; i-- { // late parts first: they disturb less of the rest
			if i >= len(parts) {
				continue
			}
			less := c
			less.Without = append(slices.Clone(c.Without), parts[i])
			for n := range uint64(orders) {
				less.Order = c.Order + n
				if got, left := try(less); got != "" && same(got) {
					c, reason, parts, again = less, got, left, true
					break
				}
			}
		}
	}
	return c, reason, parts, nil
}

var details = regexp.MustCompile(`[0-9]+`)

// alike returns the common part of failures of one cause: their first line without
// numbers.
func alike(reason string) string {
	first, _, _ := strings.Cut(reason, "\n")
	first = details.ReplaceAllString(first, "")
	return first[:min(len(first), 40)]
}
