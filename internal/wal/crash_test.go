package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
)

// ledger is what a test knows about a log.
type ledger struct {
	mu    sync.Mutex
	recs  []Record // that were appended, in order
	need  LSN      // the log is needed from here on
	acked atomic.Uint64
}

// check checks that a log holds a prefix of what was appended, with everything
// that was acknowledged, and returns the prefix.
func (g *ledger) check(l *Log, acked LSN) (*ledger, error) {
	g.mu.Lock()
	recs, need := g.recs, g.need
	g.mu.Unlock()
	next := &ledger{need: need}
	for len(recs) > 0 && recs[0].Start < need {
		recs = recs[1:]
	}
	err := l.Replay(need, func(r *Record) error {
		switch {
		case len(recs) == 0:
			return fmt.Errorf("record at %d was never appended", r.Start)
		case recs[0].Start != r.Start || recs[0].End != r.End || !bytes.Equal(recs[0].Payload, r.Payload):
			return fmt.Errorf("record at %d to %d with %d bytes, want %d to %d with %d", r.Start, r.End, len(r.Payload), recs[0].Start, recs[0].End, len(recs[0].Payload))
		}
		next.recs = append(next.recs, recs[0])
		recs = recs[1:]
		return nil
	})
	if err == nil && len(recs) > 0 && recs[0].End <= acked {
		err = fmt.Errorf("lost: the record at %d to %d is not there, and %d was acknowledged", recs[0].Start, recs[0].End, acked)
	}
	return next, err
}

// crasher runs a workload and recovers from crashes at each operation.
type crasher struct {
	t          *testing.T
	seed       uint64
	opt        Options
	recoveries atomic.Int64
	skip       int // of this many crash points, all but one are skipped
}

// options returns random options of small logs.
func options(rnd *rand.Rand, fs vfs.FS) Options {
	o := Options{FS: fs, Dir: "a/b", SegmentBytes: int64(4096 * (1 + rnd.IntN(6))), RecordBytes: 32 << 10, Identity: [16]byte{1, 2, 3}}
	o.MarkDelay = []time.Duration{-1, 100 * time.Microsecond, time.Millisecond}[rnd.IntN(3)]
	return o
}

// payload makes a payload that no other record has.
func payload(rnd *rand.Rand) []byte {
	n := rnd.IntN(300)
	switch rnd.IntN(20) {
	case 0:
		n = 0
	case 1:
		n = rnd.IntN(32 << 10)
	case 2:
		n = rnd.IntN(6 << 10)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

// run runs a workload of steps on a log.
func (c *crasher) run(l *Log, g *ledger, rnd *rand.Rand, steps int) error {
	last := LSN(0)
	for range steps {
		switch rnd.IntN(10) {
		case 0, 1:
			if err := l.Wait(context.Background(), last); err != nil {
				return err
			}
		case 2:
			if rnd.IntN(3) == 0 {
				time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond) // for marks
			}
		case 3:
			if err := c.cut(l, g, rnd); err != nil {
				return err
			}
		default:
			r, err := appendRecord(l, g, payload(rnd))
			if err != nil {
				return err
			}
			last = r.End
		}
	}
	return nil
}

// appendRecord appends a record, and waits for the disk if it is behind.
func appendRecord(l *Log, g *ledger, p []byte) (Record, error) {
	for {
		g.mu.Lock() // the ledger has the record before it can be durable
		end, err := l.Append(p)
		if err == nil {
			r := Record{Start: end - frameSize(len(p)), End: end, Payload: p}
			g.recs = append(g.recs, r)
			g.mu.Unlock()
			return r, nil
		}
		g.mu.Unlock()
		if !errors.Is(err, ErrBehind) {
			return Record{}, err
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// cut gives up the log before a record that is durable.
func (c *crasher) cut(l *Log, g *ledger, rnd *rand.Rand) error {
	g.mu.Lock()
	var at []LSN
	for _, r := range g.recs {
		if r.Start >= g.need && r.Start <= l.Durable() {
			at = append(at, r.Start)
		}
	}
	if len(at) > 0 {
		g.need = at[rnd.IntN(len(at))]
	}
	need := g.need
	g.mu.Unlock()
	return l.Cut(need)
}

// recover recovers from a crash. It opens what the crash left, appends, and
// opens it again. nested crashes in the middle of that.
func (c *crasher) recover(mem *vfstest.Mem, g *ledger, acked LSN, rnd *rand.Rand, nested bool) error {
	c.recoveries.Add(1)
	for life := range 2 {
		fs := vfstest.New(mem)
		now := g
		if nested {
			seed := rnd.Uint64()
			fs.Before = func(n int, op vfstest.Op, name string) error {
				if op.Changes() {
					sub := rand.New(rand.NewPCG(seed, uint64(n)))
					clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[sub.IntN(3)], RNG: sub})
					if err := c.recover(clone, now, acked, sub, false); err != nil {
						return fmt.Errorf("crash at %s of %s during recovery: %w", op, name, err)
					}
				}
				return nil
			}
		}
		opt := c.opt
		opt.FS, opt.Released = fs, nil
		l, err := Open(opt)
		if err != nil {
			return fmt.Errorf("life %d: open: %w", life, err)
		}
		if g, err = g.check(l, acked); err != nil {
			return errors.Join(fmt.Errorf("life %d: %w", life, err), l.Close())
		}
		nested = false // what is appended now would have to be known to the nested one
		fs.Before = nil
		l.Start()
		for range 1 + rnd.IntN(3) {
			if _, err := appendRecord(l, g, payload(rnd)); err != nil {
				return errors.Join(fmt.Errorf("life %d: append: %w", life, err), l.Close())
			}
		}
		acked = l.End()
		if err := l.Close(); err != nil {
			return fmt.Errorf("life %d: close: %w", life, err)
		}
		mem = mem.CrashClone(vfs.CrashCloneCfg{})
	}
	return nil
}

// crash recovers from what crashes at this moment may leave.
func (c *crasher) crash(mem *vfstest.Mem, g *ledger, n int, what string) error {
	rnd := rand.New(rand.NewPCG(c.seed, uint64(n)))
	for _, percent := range []int{0, 20 + rnd.IntN(60), 100} {
		g.mu.Lock() // need does not change
		acked := LSN(g.acked.Load())
		clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rnd})
		now := &ledger{recs: g.recs, need: g.need}
		g.mu.Unlock()
		if err := c.recover(clone, now, acked, rnd, rnd.IntN(4) == 0); err != nil {
			return fmt.Errorf("seed %d: crash before operation %d, %s, with %d %% of what is not synced: %w", c.seed, n, what, percent, err)
		}
	}
	return nil
}

// live runs a log through several lives with a crash point at each operation.
func (c *crasher) live(lives, steps int) {
	rnd := rand.New(rand.NewPCG(c.seed, 0))
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	var g ledger
	var failed atomic.Pointer[error]
	c.opt = options(rnd, fs)
	points := atomic.Int64{}
	try := func(n int, what string) error {
		if int(points.Add(1))%max(c.skip, 1) != 0 || failed.Load() != nil {
			return nil
		}
		err := c.crash(mem, &g, n, what)
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
		return err
	}
	fs.Before = func(n int, op vfstest.Op, name string) error {
		if !op.Changes() {
			return nil
		}
		return try(n, fmt.Sprintf("%s of %s", op, name))
	}
	var pickMu sync.Mutex
	pick := rand.New(rand.NewPCG(c.seed, 1))
	fs.Pick = func() bool {
		pickMu.Lock()
		defer pickMu.Unlock()
		return pick.IntN(2) == 0
	}
	fs.Torn = func() { _ = try(1<<20+fs.Count(), "torn write") }
	c.opt.Released = func(pos LSN) { g.acked.Store(uint64(pos)) }
	for life := range lives {
		l, err := Open(c.opt)
		if err == nil {
			_, err = g.check(l, LSN(g.acked.Load()))
			l.Start()
			if err == nil {
				err = c.run(l, &g, rnd, steps)
			}
			err = errors.Join(err, l.Close())
		}
		if p := failed.Load(); p != nil {
			c.t.Fatal(*p)
		}
		if err != nil {
			c.t.Fatalf("seed %d, life %d: %v", c.seed, life, err)
		}
	}
}

// Whatever was acknowledged is there after a crash before any operation that
// changes something, and what is there is a prefix of what was appended.
// DRTMX_CRASHES sets the number of recoveries.
func TestCrashAtEveryOperation(t *testing.T) {
	total, first := testseed.Number(t, "DRTMX_CRASHES", 300), testseed.Of(t)
	done := 0
	for seed := first; done < total; seed++ {
		c := &crasher{t: t, seed: seed}
		c.live(3, 25)
		done += int(c.recoveries.Load())
	}
	t.Logf("seeds from %d: %d recoveries, nothing acknowledged lost", first, done)
}
