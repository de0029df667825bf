package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"drtmx/internal/sim"
)

// batch is how many clusters one process simulates.
const batch = 10

// runs simulates many seeds, in several processes at a time.
type runs struct {
	b *binary
	o *options

	mu               sync.Mutex
	began            time.Time
	next             uint64 // seed
	kinds            map[string]int
	clusters, events int
	txns, crashes    int
	replayed, differ int
	failed           []uint64 // seeds
}

func newRuns(b *binary, o *options) *runs {
	return &runs{b: b, o: o, began: time.Now(), kinds: map[string]int{}, next: o.seeds.first}
}

// all simulates cases, and then the seeds. c has what is the same for all of these.
func (r *runs) all(ctx context.Context, cases []simCase, c simCase) error {
	var wg sync.WaitGroup
	for range r.o.jobs {
		wg.Go(func() {
			for ctx.Err() == nil {
				own, n := r.take(&cases, c)
				if n == 0 {
					return
				}
				r.runSome(ctx, own, n)
			}
		})
	}
	wg.Wait()
	say("")
	took := time.Since(r.began)
	fmt.Printf("%d clusters in %v (%.0f a minute), %d events, %d transactions, %d crashes; %d run again, of which %d with another trace; %d failed\n",
		r.clusters, took.Round(time.Second), float64(r.clusters)/took.Minutes(), r.events, r.txns, r.crashes, r.replayed, r.differ, len(r.failed))
	switch {
	case len(r.failed) > 0:
		slices.Sort(r.failed)
		fmt.Printf("%s%s\n", failedPrefix, strings.Trim(fmt.Sprint(r.failed), "[]"))
		return errFailed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return nil
}

// take returns what a process is to simulate next: n seeds from that of a case on.
func (r *runs) take(cases *[]simCase, c simCase) (simCase, uint64) {
	if r.over() {
		return c, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(*cases) > 0 {
		c = (*cases)[0]
		*cases = (*cases)[1:]
		return c, 1
	}
	if r.o.seeds.first == 0 || r.o.limit > 0 && time.Since(r.began) > r.o.limit {
		return c, 0
	}
	n := uint64(batch)
	if last := r.o.seeds.last; last > 0 {
		n = min(n, last+1-min(r.next, last+1))
	}
	c.Seed = r.next
	r.next += n
	return c, n
}

// over reports whether enough seeds have failed.
func (r *runs) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failed) >= r.o.failures
}

// runSome simulates n seeds in one process, and some of them again.
func (r *runs) runSome(ctx context.Context, c simCase, n uint64) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(n+4)*r.o.patience)
	defer cancel()
	x := r.b.process(ctx, c, n)
	if failed, ok := r.note(ctx, c, n, x); ok && failed < c.Seed+n-1 { // the process has ended with the failure
		rest := c
		rest.Seed = failed + 1
		if !r.over() {
			defer r.runSome(ctx, rest, c.Seed+n-rest.Seed)
		}
	}
	for _, first := range x.results {
		if r.o.replay == 0 || first.Seed%uint64(r.o.replay) != 0 {
			continue
		}
		c.Seed = first.Seed
		again := r.b.process(ctx, c, 1)
		if ctx.Err() != nil {
			return
		}
		r.compare(c, first, again)
	}
}

// compare checks that a seed had the same trace again.
func (r *runs) compare(c simCase, first sim.Result, again ran) {
	hash := "none"
	if len(again.results) == 1 {
		hash = again.results[0].Hash
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replayed++; hash == first.Hash {
		return
	}
	r.differ++
	r.failed = append(r.failed, c.Seed)
	say("")
	fmt.Printf("seed %d %s: FAILED: its trace was %s, and %s when it ran again; %s\n%s", c.Seed, first.Kind, first.Hash, hash, c.again(), again.other)
}

// note counts what a process has run, and prints the failure if a seed has failed.
func (r *runs) note(ctx context.Context, c simCase, n uint64, x ran) (failed uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range x.results {
		res := &x.results[i]
		r.clusters++
		r.events += res.Events
		r.txns += res.Transactions
		r.crashes += res.Counts["crashes"] + res.Counts["crashes while recovering"]
		r.kinds[res.Kind]++
		if r.o.json {
			_ = json.NewEncoder(os.Stdout).Encode(res)
		}
	}
	say("%d clusters, %d failed", r.clusters, len(r.failed))
	ended := uint64(len(x.results))
	if x.err == nil && ended == n {
		return 0, false
	}
	if ended > 0 && x.results[ended-1].Failure != "" {
		res := &x.results[ended-1]
		say("")
		c.Seed = res.Seed
		r.failed = append(r.failed, c.Seed)
		fmt.Print(describe(c, res))
		return c.Seed, true
	}
	if errors.Is(ctx.Err(), context.Canceled) { // interrupted, which is no failure of a seed
		return 0, false
	}
	say("")
	c.Seed += min(ended, n-1)
	r.failed = append(r.failed, c.Seed)
	fmt.Printf("seed %d: FAILED: the process ended (%v); %s\n%s\n", c.Seed, x.err, c.again(), strings.TrimSpace(x.other))
	return c.Seed, true
}

// failedPrefix precedes the seeds that have failed, in the last line.
const failedPrefix = "seeds that failed: "

// describe returns the text of a failure.
func describe(c simCase, res *sim.Result) string {
	first, more, _ := strings.Cut(res.Failure, "\n")
	s := fmt.Sprintf("seed %d %s: FAILED: %s; hash %s; %s\n", res.Seed, res.Kind, first, res.Hash, c.again())
	if more != "" {
		s += more + "\n"
	}
	return s + fmt.Sprintf("the case:\n%s\nthe last events:\n%s", res.Case, res.Tail)
}

// trace prints all events of a case.
func trace(ctx context.Context, b *binary, c simCase, out *os.File) error {
	x := b.process(ctx, c, 1, "DRTMX_SIM_TRACE="+b.dir)
	raw, err := os.ReadFile(fmt.Sprintf("%s/trace-%d", b.dir, c.Seed))
	if err != nil {
		return fmt.Errorf("%w: %s", err, x.other)
	}
	if _, err := out.Write(raw); err != nil {
		return err
	}
	if len(x.results) == 0 {
		fmt.Fprintf(out, "seed %d: FAILED: the process ended (%v)\n%s\n", c.Seed, x.err, x.other)
		return errFailed
	}
	res := &x.results[0]
	if res.Failure != "" {
		fmt.Fprint(out, describe(c, res), x.other)
		return errFailed
	}
	fmt.Fprintf(out, "seed %d %s: hash %s, %d events, %v, %d transactions: %v\nparts: %s\n", res.Seed, res.Kind, res.Hash, res.Events,
		res.Lasted, res.Transactions, res.Counts, strings.Join(res.Parts, ","))
	return nil
}
