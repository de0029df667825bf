package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/hist"
)

// cell is one row of the table: a store, a number of writers and a way to read.
type cell struct {
	store
	rows, writers int
	how           string
	plan          plan
	seed          uint64
}

// plan is how long a cell takes.
type plan struct {
	window       time.Duration // at least, and at least one read
	pairs, paced int           // windows beside each table, saturated and paced
}

// settle is how long writers run before a window.
const settle = 50 * time.Millisecond

// window is what happened in windows of one kind.
type window struct {
	time, cpu time.Duration // cpu: of writers and store, without the reader
	commits   uint64
	aborts    uint64
	offered   float64
	reads     int
	reading   time.Duration
	counts
	heap, bytes, versions uint64 // the most
	latency               *hist.Histogram
}

func (w *window) rate() float64      { return float64(w.commits) / w.time.Seconds() }
func (w *window) cpuUs() float64     { return w.cpu.Seconds() * 1e6 / float64(w.commits) }
func (w *window) kept() float64      { return float64(w.commits) / w.offered }
func (w *window) readMs() float64    { return w.reading.Seconds() * 1e3 / float64(w.reads) }
func (w *window) abortsPer() float64 { return 1000 * float64(w.aborts) / float64(w.commits) }

func (w *window) add(v *window) {
	w.time, w.cpu, w.commits, w.aborts, w.offered = w.time+v.time, w.cpu+v.cpu, w.commits+v.commits, w.aborts+v.aborts, w.offered+v.offered
	w.reads, w.reading = w.reads+v.reads, w.reading+v.reading
	w.counts.add(v.counts)
	w.heap, w.bytes, w.versions = max(w.heap, v.heap), max(w.bytes, v.bytes), max(w.versions, v.versions)
	if v.latency != nil {
		if w.latency == nil {
			w.latency = hist.New()
		}
		w.latency.Merge(v.latency)
	}
}

// result is what a cell has measured. The indexes of beside and paced say
// whether the reader read cold, 0, or hot, 1.
type result struct {
	cell
	name          string
	servers       int
	alone         window
	beside, paced [2]window
	pairs         []float64     // rate beside hot ÷ rate beside cold
	rate          float64       // offered when paced
	every         time.Duration // between reads beside writers without pause
}

// run measures a cell. Writers write to hot without pause while a reader reads
// cold (the control: it takes processor time and has nothing in common with the
// writers) and hot, in turns, as often as it can read hot. Then the writers are
// offered half of the rate that they reached beside cold, and the reader reads
// half as often.
func (c *cell) run(ctx context.Context) (_ *result, err error) {
	r := &result{cell: *c}
	rd, err := c.reader(ctx, c.how)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rd.close()) }()
	for _, table := range []string{cold, hot} { // fills caches
		if err := c.check(ctx, rd, table); err != nil {
			return nil, err
		}
	}
	w, err := c.window(ctx, nil, "", 0, 0)
	if err != nil {
		return nil, err
	}
	r.alone = *w
	if w, err = c.window(ctx, rd, hot, 0, 0); err != nil {
		return nil, err
	}
	r.every = w.reading / time.Duration(w.reads)
	turns := func(n int, rate float64, every time.Duration, sums *[2]window, after func(pair [2]*window)) error {
		for i := range n {
			var pair [2]*window
			for j := range 2 {
				which := (i + j) % 2 // which of the two is first changes, too
				if pair[which], err = c.window(ctx, rd, []string{cold, hot}[which], rate, every); err != nil {
					return err
				}
				sums[which].add(pair[which])
			}
			after(pair)
		}
		return nil
	}
	err = turns(c.plan.pairs, 0, r.every, &r.beside, func(p [2]*window) { r.pairs = append(r.pairs, p[1].rate()/p[0].rate()) })
	if err != nil {
		return nil, err
	}
	slices.Sort(r.pairs)
	r.rate = r.beside[0].rate() / 2
	return r, turns(c.plan.paced, r.rate, 2*r.every, &r.paced, func([2]*window) {})
}

// check reads a table and compares its total with what it must be.
func (c *cell) check(ctx context.Context, rd *reader, table string) error {
	sum, rows, err := rd.read(ctx, table)
	if err == nil && (rows != c.rows || sum != balance*int64(rows)) {
		err = fmt.Errorf("%s: %d rows with %d in all, want %d with %d", table, rows, sum, c.rows, balance*c.rows)
	}
	return err
}

// window runs the writers beside a reader of table, which may be nil, for the
// plan's window and at least one read. A read begins when every has passed since
// the one before began.
func (c *cell) window(ctx context.Context, rd *reader, table string, rate float64, every time.Duration) (*window, error) {
	ws, err := c.start(ctx, rate)
	if err != nil {
		return nil, err
	}
	time.Sleep(settle)
	v := &window{}
	before, err := c.usage(ctx)
	if err != nil {
		return nil, errors.Join(err, ws.stop())
	}
	own, commits, aborts, start := ownCPU(), ws.commits.Load(), ws.conflicts(), time.Now()
	var spent time.Duration
	if rd == nil {
		time.Sleep(c.plan.window)
	} else {
		spent, err = c.read(ctx, rd, table, v, start, every)
	}
	v.time = time.Since(start)
	v.commits, v.aborts, v.offered = ws.commits.Load()-commits, ws.conflicts()-aborts, rate*v.time.Seconds()
	v.cpu = ownCPU() - own - spent
	v.heap = heap()
	after, uerr := c.usage(ctx)
	v.cpu += after.cpu - before.cpu
	v.bytes, v.versions = after.bytes, after.versions
	if err = errors.Join(err, uerr, ws.stop()); err != nil {
		return nil, err
	}
	if rate > 0 {
		v.latency = ws.latency()
	}
	return v, nil
}

// read reads in a thread of its own and returns what the reader has used.
func (c *cell) read(ctx context.Context, rd *reader, table string, v *window, start time.Time, every time.Duration) (spent time.Duration, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // its time is that of the reader
		defer runtime.UnlockOSThread()
		thread, elsewhere, counted := threadCPU(), rd.cpu(), rd.counts()
		for v.reads == 0 || time.Since(start) < c.plan.window {
			begun := time.Now()
			if err = c.check(ctx, rd, table); err != nil {
				return
			}
			v.reading += time.Since(begun)
			v.reads++
			time.Sleep(time.Until(begun.Add(every)))
		}
		v.counts = rd.counts().sub(counted)
		spent = threadCPU() - thread + rd.cpu() - elsewhere
	}()
	<-done
	return spent, err
}

// heap is what live and dead objects of this process take.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// writers are running.
type writers struct {
	commits atomic.Uint64
	all     []*writer
	aborted []atomic.Uint64 // of each, so far
	hists   []*hist.Histogram
	errs    []error
	wg      sync.WaitGroup
	cancel  context.CancelFunc
}

// start starts the cell's writers. Together they are offered rate transactions
// a second, or write without pause if it is 0.
func (c *cell) start(ctx context.Context, rate float64) (*writers, error) {
	ws := &writers{aborted: make([]atomic.Uint64, c.writers), errs: make([]error, c.writers)}
	for range c.writers {
		w, err := c.writer(ctx)
		if err != nil {
			return nil, errors.Join(err, ws.close())
		}
		ws.all, ws.hists = append(ws.all, w), append(ws.hists, hist.New())
	}
	ctx, ws.cancel = context.WithCancel(ctx)
	begun := time.Now()
	for i, w := range ws.all {
		rng := rand.New(rand.NewPCG(c.seed, uint64(i)))
		next := func() time.Time { return time.Time{} }
		if rate > 0 {
			every, n := time.Duration(float64(c.writers)/rate*float64(time.Second)), 0
			first := begun.Add(every * time.Duration(i) / time.Duration(c.writers))
			next = func() time.Time { n++; return first.Add(every * time.Duration(n-1)) }
		}
		ws.wg.Go(func() { ws.errs[i] = ws.write(ctx, i, w, rng, uint64(c.rows), next) })
	}
	return ws, nil
}

// write is one writer. A latency counts from the time at which the transaction
// was to begin.
func (ws *writers) write(ctx context.Context, i int, w *writer, rng *rand.Rand, rows uint64, next func() time.Time) error {
	for ctx.Err() == nil {
		from := rng.Uint64N(rows)
		to := (from + 1 + rng.Uint64N(rows-1)) % rows
		at := next()
		if !at.IsZero() {
			time.Sleep(time.Until(at))
		}
		if err := w.move(context.WithoutCancel(ctx), from, to); err != nil {
			return err
		}
		ws.commits.Add(1)
		ws.aborted[i].Store(w.aborts())
		if !at.IsZero() {
			ws.hists[i].Record(time.Since(at))
		}
	}
	return nil
}

func (ws *writers) conflicts() (n uint64) {
	for i := range ws.aborted {
		n += ws.aborted[i].Load()
	}
	return n
}

func (ws *writers) latency() *hist.Histogram {
	h := hist.New()
	for _, one := range ws.hists {
		h.Merge(one)
	}
	return h
}

// stop ends the writers and returns their errors.
func (ws *writers) stop() error {
	ws.cancel()
	ws.wg.Wait()
	return errors.Join(append(ws.errs, ws.close())...)
}

func (ws *writers) close() (err error) {
	for _, w := range ws.all {
		err = errors.Join(err, w.close())
	}
	return err
}
