package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/txn"
	"drtmx/txn/stats"
)

// gauges reads clocks and counters at the beginning and the end of the measured
// interval.
type gauges struct {
	db        *txn.DB
	lost      func() error // why a data server is gone; nil if none is
	terminals *terminals
	from, to  reading
}

// reading has the values at one moment.
type reading struct {
	taken     bool
	servers   []stats.Server
	clientCPU float64
	fallbacks uint64
	chases    uint64
	cache     uint64 // bytes cached by the client halves
	skipping  uint64 // DELIVERYs that skipped some district
	waited    int64  // DELIVERYs that found their queue full
}

func (g *gauges) begin(ctx context.Context) (err error) {
	g.from, err = g.read(ctx)
	return err
}

func (g *gauges) end(ctx context.Context) (err error) {
	if g.lost() != nil {
		return nil // a lost server does not answer; the run reports its loss
	}
	g.to, err = g.read(ctx)
	return err
}

func (g *gauges) read(ctx context.Context) (reading, error) {
	var r reading
	var err error
	if r.servers, err = g.db.ServerStats(ctx); err != nil {
		return r, fmt.Errorf("statistics of the data servers: %w", err)
	}
	for _, ix := range g.db.IndexStats() {
		r.fallbacks += ix.Fallbacks
		r.chases += ix.Chases
		r.cache += ix.CacheBytes
	}
	r.skipping, r.waited = g.terminals.skipping(), g.terminals.waited.Load()
	r.clientCPU = processCPU()
	r.taken = true
	return r, nil
}

// processCPU returns the user and system time of this process, in seconds; 0 if the
// system does not report it.
func processCPU() float64 {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()).Seconds()
}

// logged returns by how many bytes the logs have grown within the interval, and how
// many bytes were sent to copies. It leaves out data servers that were started within
// the interval.
func (g *gauges) logged() (bytes, sent uint64) {
	for i := range g.to.servers {
		from, to := &g.from.servers[i], &g.to.servers[i]
		if from.Log == nil || to.Log == nil || from.PID != to.PID || from.Epoch != to.Epoch {
			continue
		}
		bytes += to.Log.Bytes - from.Log.Bytes
		sent += to.Log.CopySentBytes - from.Log.CopySentBytes
	}
	return bytes, sent
}

// separable reports whether CPU times of servers and client can be told apart: they
// are different processes, and the servers' processes are the same at both edges.
func (g *gauges) separable() bool {
	for i, s := range g.from.servers {
		if s.PID == os.Getpid() || g.to.taken && g.to.servers[i].PID != s.PID {
			return false
		}
	}
	return g.from.taken && g.to.taken
}

// serverCPU returns the CPU time, in seconds, of all data servers within the
// interval.
func (g *gauges) serverCPU() (sum float64) {
	seen := map[int]bool{}
	for i := range g.to.servers {
		if pid := g.to.servers[i].PID; !seen[pid] {
			seen[pid] = true
			sum += g.to.servers[i].CPUSeconds - g.from.servers[i].CPUSeconds
		}
	}
	return sum
}
