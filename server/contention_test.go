package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// contention is the result of many goroutines that update few rows.
type contention struct {
	took    time.Duration // until the last goroutine ended
	cpu     time.Duration
	waits   []time.Duration // sorted
	gaveUp  int
	tries   uint64 // runs of a body
	allocs  uint64
	fabric  rdma.Counters // of the clients' connections
	other   error         // anything but ErrConflict and the end of a deadline
	slowest time.Duration // of the first transactions of all goroutines
}

func (c *contention) at(p float64) time.Duration {
	if len(c.waits) == 0 {
		return 0
	}
	return c.waits[int(p*float64(len(c.waits)-1))]
}

func (c *contention) rate() float64 { return float64(len(c.waits)) / c.took.Seconds() }

// cpuEach returns the microseconds of processor time of each transaction.
func (c *contention) cpuEach() float64 { return float64(c.cpu.Microseconds()) / float64(len(c.waits)) }

// add adds another run of as many goroutines.
func (c *contention) add(o *contention) {
	c.took, c.cpu, c.gaveUp, c.tries, c.allocs = c.took+o.took, c.cpu+o.cpu, c.gaveUp+o.gaveUp, c.tries+o.tries, c.allocs+o.allocs
	c.waits, c.other, c.fabric = append(c.waits, o.waits...), errors.Join(c.other, o.other), c.fabric.Add(o.fabric)
	slices.Sort(c.waits)
	c.slowest = max(c.slowest, o.slowest)
}

// crowd is a number of goroutines that add 1 to random ones of the first `rows`
// accounts, `each` of them in a transaction.
type crowd struct {
	db       *txn.DB
	sessions []*txn.Session // nil: DB.Update
	acct     *tables.Table
	counters func() rdma.Counters
	each     int
	rows     int
}

// member is one of a crowd.
type member struct {
	*crowd
	own    contention
	r      *rand.Rand
	update func(context.Context, func(*txn.Txn) error) error
}

// once runs one transaction.
func (m *member) once(ctx context.Context) {
	first := m.r.Uint64N(uint64(m.rows))
	at := time.Now()
	err := m.update(ctx, func(t *txn.Txn) error {
		m.own.tries++
		var gets [2]*txn.QueuedGet
		for i := range m.each {
			gets[i] = t.QueueGet(m.acct, tables.Num((first+uint64(i)*37)%uint64(m.rows)))
		}
		for i, g := range gets[:m.each] {
			row, err := g.Row()
			if err != nil {
				return err
			}
			row = slices.Clone(row)
			balance := m.acct.Field("balance")
			row.SetInt(balance, row.Int(balance)+1)
			if err := t.Update(m.acct, tables.Num((first+uint64(i)*37)%uint64(m.rows)), row); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil:
		m.own.waits = append(m.own.waits, time.Since(at))
	case errors.Is(err, txn.ErrConflict), errors.Is(err, context.DeadlineExceeded):
		m.own.gaveUp++
	default:
		m.own.other = err
	}
}

// run lets n goroutines run transactions one after the other until the time is
// over, at least one each. No goroutine waits for a transaction for longer than
// 10 s.
func (c *crowd) run(n int, run time.Duration) *contention {
	var (
		mu      sync.Mutex
		all     contention
		ready   sync.WaitGroup
		done    sync.WaitGroup
		begin   = make(chan struct{})
		start   time.Time
		members = make([]member, n)
	)
	for g := range n {
		m := &members[g]
		m.crowd, m.r, m.update = c, rand.New(rand.NewPCG(uint64(n), uint64(g))), c.db.Update
		m.own.waits = make([]time.Duration, 0, 1<<12) // allocations of transactions are counted
		if c.sessions != nil {
			m.update = c.sessions[g].Update
		}
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-begin
			m.once(context.Background())
			first := time.Since(start)
			for time.Since(start) < run {
				m.once(context.Background())
			}
			mu.Lock()
			defer mu.Unlock()
			all.slowest = max(all.slowest, first)
		})
	}
	ready.Wait()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fabric, cpu := c.counters(), processTime()
	start = time.Now()
	close(begin)
	done.Wait()
	all.took, all.cpu = time.Since(start), processTime()-cpu
	all.fabric = c.counters().Sub(fabric)
	runtime.ReadMemStats(&after)
	all.allocs = after.Mallocs - before.Mallocs
	for i := range members {
		own := &members[i].own
		all.waits = append(all.waits, own.waits...)
		all.gaveUp, all.tries, all.other = all.gaveUp+own.gaveUp, all.tries+own.tries, errors.Join(all.other, own.other)
	}
	slices.Sort(all.waits)
	return &all
}

// BenchmarkContention compares 5,000 goroutines that update 1,000 rows with 64
// in the same cluster, which run in turn: the rate of the many divided by that of
// the few, and the same of the transactions for each second of processor time,
// which depends less on what else the machine does.
func BenchmarkContention(b *testing.B) {
	const few, many, rows, slice = 64, 5000, 1000, 2 * time.Second
	for _, name := range []string{"inproc", "two servers", "shm", "tcp"} {
		for _, way := range []string{"update", "session"} {
			for each := 1; each <= 2; each++ {
				b.Run(fmt.Sprintf("%s/%s/rows=%d", name, way, each), func(b *testing.B) {
					c := crowdOver(b, name, rows)
					c.each = each
					for range many {
						if way == "update" {
							break
						}
						s, err := c.db.NewSession(b.Context())
						if err != nil {
							b.Fatal(err)
						}
						defer s.Close()
						c.sessions = append(c.sessions, s)
					}
					wave := c.run(many, 0) // connects, and fills the caches
					var both [2]contention
					for b.Loop() {
						for range 2 {
							both[0].add(c.run(few, slice))
							both[1].add(c.run(many, slice))
						}
					}
					if err := errors.Join(both[0].other, both[1].other, wave.other); err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(wave.slowest.Milliseconds()), "first-wave-ms")
					b.ReportMetric(both[1].rate()/both[0].rate(), "rate-ratio")
					b.ReportMetric(both[0].cpuEach()/both[1].cpuEach(), "cpu-ratio")
					for i, n := range []int{few, many} {
						both[i].report(b, strconv.Itoa(n)+"-")
					}
				})
			}
		}
	}
}

// crowdOver opens a bank over a fabric, at one server, or at two in this process, whose
// messages are not counted.
func crowdOver(b *testing.B, name string, rows int) crowd {
	if name == "two servers" {
		cl, acct, _ := startBank(b, 2)
		putAccounts(b, cl.DB, acct, rows, 100)
		return crowd{db: cl.DB, acct: acct, rows: rows, counters: func() (none rdma.Counters) { return none }}
	}
	p := deadlineFabrics(b)[name]
	if p == nil {
		b.Skip("no such fabric on this system")
	}
	f := startOver(b, name, p, rows)
	return crowd{db: f.db, acct: f.acct, rows: rows, counters: f.counters}
}

// report reports what a run has measured, with all figures of one transaction.
func (c *contention) report(b *testing.B, prefix string) {
	each := 1 / float64(len(c.waits))
	b.ReportMetric(c.rate(), prefix+"txn/s")
	b.ReportMetric(c.cpuEach(), prefix+"cpu-us")
	b.ReportMetric(float64(c.gaveUp), prefix+"given-up")
	b.ReportMetric(float64(c.at(0.5).Microseconds()), prefix+"p50-us")
	b.ReportMetric(float64(c.at(0.99).Microseconds()), prefix+"p99-us")
	b.ReportMetric(float64(c.at(0.99))/float64(c.at(0.5)), prefix+"p99/p50")
	b.ReportMetric(float64(c.tries)*each, prefix+"attempts")
	b.ReportMetric(float64(c.fabric.RPCs)*each, prefix+"rpcs")
	b.ReportMetric(float64(c.fabric.Reads)*each, prefix+"reads")
	b.ReportMetric(float64(c.allocs)*each, prefix+"allocs")
}

func processTime() time.Duration {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// BenchmarkHotHome reports the latencies of procedures that all write one row
// of their home partition, as PAYMENT writes its warehouse. One in seven also
// writes a row of another server.
func BenchmarkHotHome(b *testing.B) {
	const callers, rows = 256, 2000
	ctx := context.Background()
	cl, acct, _ := startBank(b, 2)
	putAccounts(b, cl.DB, acct, rows, 1<<40)
	for b.Loop() {
		var (
			mu    sync.Mutex
			waits [2][]time.Duration // local, of two servers
			wg    sync.WaitGroup
			start = time.Now()
		)
		for g := range callers {
			wg.Go(func() {
				s, err := cl.DB.NewSession(ctx)
				if err != nil {
					b.Error(err)
					return
				}
				defer s.Close()
				r := rand.New(rand.NewPCG(7, uint64(g)))
				home := uint64(g) % 2
				for time.Since(start) < 4*time.Second {
					kind, to := 0, 2+home+2*r.Uint64N(rows/2-1)
					if r.Uint64N(7) == 0 {
						kind, to = 1, 2+(home+1)%2+2*r.Uint64N(rows/2-1)
					}
					at := time.Now()
					if _, err := s.Call(ctx, txn.Home(home), "transfer", transferArgs(home, to, 1)); err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					waits[kind] = append(waits[kind], time.Since(at))
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for kind, name := range []string{"local", "two"} {
			c := contention{took: time.Since(start), waits: waits[kind]}
			slices.Sort(c.waits)
			b.ReportMetric(c.rate(), name+"-txn/s")
			b.ReportMetric(float64(c.at(0.5).Microseconds()), name+"-p50-us")
			b.ReportMetric(float64(c.at(0.99).Microseconds()), name+"-p99-us")
		}
		slices.Sort(waits[0])
		all := contention{waits: append(waits[0], waits[1]...)}
		slices.Sort(all.waits)
		b.ReportMetric(float64(all.at(0.99))/float64(all.at(0.5)), "p99/p50")
	}
}
