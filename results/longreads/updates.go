package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"drtmx/internal/cluster"
)

// updates compares updates alone, without readers, in a cluster that keeps
// versions and one that keeps none, in turns.
func (o *options) updates(ctx context.Context, out, progress io.Writer) (err error) {
	const rows, writers = 30_000, 8
	var cells [2]cell
	for i, retain := range []time.Duration{cluster.RetainNothing, cluster.DefaultRetain} {
		st, err := openDrtmx(ctx, 1, rows, retain)
		if err != nil {
			return err
		}
		defer st.Close()
		cells[i] = cell{store: st, rows: rows, writers: writers, plan: plan{window: 500 * time.Millisecond}, seed: o.seed}
	}
	var sums [2]window
	var rates, cpus []float64
	for round := range o.retainRounds {
		fmt.Fprintf(progress, "%s updates, round %d of %d\n", time.Now().Format(time.TimeOnly), round+1, o.retainRounds)
		var pair [2]*window
		for j := range 2 {
			which := (round + j) % 2
			if pair[which], err = cells[which].window(ctx, nil, "", 0, 0); err != nil {
				return err
			}
			sums[which].add(pair[which])
		}
		rates = append(rates, pair[1].rate()/pair[0].rate())
		cpus = append(cpus, pair[1].cpuUs()/pair[0].cpuUs())
	}
	slices.Sort(rates)
	slices.Sort(cpus)
	n := len(rates)
	fmt.Fprintf(out, "\n## Updates alone, %d rows, %d writers, 1 server\n\n", rows, writers)
	fmt.Fprintln(out, "| | without versions | with versions | with ÷ without | median of pairs | pairs |\n|---|--:|--:|--:|--:|--:|")
	fmt.Fprintf(out, "| commits/s | %.0f | %.0f | %.3f | %.3f | %.2f–%.2f |\n",
		sums[0].rate(), sums[1].rate(), sums[1].rate()/sums[0].rate(), rates[n/2], rates[0], rates[n-1])
	fmt.Fprintf(out, "| CPU of clients and servers, µs a commit | %.2f | %.2f | %.3f | %.3f | %.2f–%.2f |\n",
		sums[0].cpuUs(), sums[1].cpuUs(), sums[1].cpuUs()/sums[0].cpuUs(), cpus[n/2], cpus[0], cpus[n-1])
	fmt.Fprintf(out, "| data, MiB | %.1f | %.1f, %.1f of them versions | | | |\n",
		float64(sums[0].bytes)/(1<<20), float64(sums[1].bytes)/(1<<20), float64(sums[1].versions)/(1<<20))
	return nil
}
