package load

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/txn"
	"drtmx/txn/stats"
)

// Gauges are clocks and counters at one moment. Those of the two edges of a measured
// interval say what the interval cost.
type Gauges struct {
	Servers   []stats.Server
	ClientCPU float64 // seconds of this process
	// Of the client halves of all indexes: lookups that went to the server, right links
	// that were followed in ordered ones, links of hash indexes (overflow buckets, older
	// versions, buckets of a table that has grown), and bytes cached.
	Fallbacks, Chases, HashChases, CacheBytes uint64
}

// ReadGauges reads them; all data servers must answer.
func ReadGauges(ctx context.Context, db *txn.DB) (g Gauges, err error) {
	if g.Servers, err = db.ServerStats(ctx); err != nil {
		return g, fmt.Errorf("statistics of the data servers: %w", err)
	}
	own := ReadClient(db)
	own.Servers = g.Servers
	return own, nil
}

// ReadClient reads those of the client alone.
func ReadClient(db *txn.DB) (g Gauges) {
	for _, ix := range db.IndexStats() {
		g.Fallbacks += ix.Fallbacks
		if ix.Ordered {
			g.Chases += ix.Chases
		} else {
			g.HashChases += ix.Chases
		}
		g.CacheBytes += ix.CacheBytes
	}
	g.ClientCPU = processCPU()
	return g
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

// Separable reports whether CPU times of servers and client can be told apart: they
// are different processes, and the servers' processes are still the same at to.
func (g *Gauges) Separable(to *Gauges) bool {
	for i, s := range g.Servers {
		if s.PID == os.Getpid() || to.Servers[i].PID != s.PID {
			return false
		}
	}
	return true
}

// AgentTime returns how long, in seconds, all data servers performed verbs of clients from g to to, as
// no RDMA device would have them do: it is part of ServerCPU.
func (g *Gauges) AgentTime(to *Gauges) (sum float64) {
	for i := range to.Servers {
		sum += to.Servers[i].AgentSeconds - g.Servers[i].AgentSeconds
	}
	return sum
}

// ServerCPU returns the CPU time, in seconds, of all data servers from g to to.
func (g *Gauges) ServerCPU(to *Gauges) (sum float64) {
	seen := map[int]bool{}
	for i := range to.Servers {
		if pid := to.Servers[i].PID; !seen[pid] {
			seen[pid] = true
			sum += to.Servers[i].CPUSeconds - g.Servers[i].CPUSeconds
		}
	}
	return sum
}
