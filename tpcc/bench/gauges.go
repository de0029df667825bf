package bench

import (
	"context"

	"drtmx/internal/load"
	"drtmx/txn"
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
	load.Gauges
	taken    bool
	skipping uint64 // DELIVERYs that skipped some district
	waited   int64  // DELIVERYs that found their queue full
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

func (g *gauges) read(ctx context.Context) (r reading, err error) {
	if r.Gauges, err = load.ReadGauges(ctx, g.db); err != nil {
		return r, err
	}
	r.skipping, r.waited = g.terminals.skipping(), g.terminals.waited.Load()
	r.taken = true
	return r, nil
}

// logged returns by how many bytes the logs have grown within the interval, and how
// many bytes were sent to copies. It leaves out data servers that were started within
// the interval.
func (g *gauges) logged() (bytes, sent uint64) {
	for i := range g.to.Servers {
		from, to := &g.from.Servers[i], &g.to.Servers[i]
		if from.Log == nil || to.Log == nil || from.PID != to.PID || from.Epoch != to.Epoch {
			continue
		}
		bytes += to.Log.Bytes - from.Log.Bytes
		sent += to.Log.CopySentBytes - from.Log.CopySentBytes
	}
	return bytes, sent
}
